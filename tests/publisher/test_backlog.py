"""Which messages are in memory and which in the store only: every accepted number is handed over exactly once."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from flyball.brokers import Message
from flyball.publisher.handle import Handle
from flyball.publisher.relay import Backlog
from flyball.store.outbox import Pending

LIMIT = 3


def handle() -> Handle:
    return Handle(Message(b""), "orders", 4, 200)


def stored(first: int, last: int) -> tuple[int, list[Pending]]:
    """What a store that holds everything gives for a range."""
    rows = [Pending(seq, 0.0, "orders", 4, Message(b"", str(seq))) for seq in range(first, last + 1)][:LIMIT]
    return (rows[-1].seq if len(rows) == LIMIT else last), rows


@given(
    earlier=st.integers(0, 8),
    steps=st.lists(
        st.tuples(st.sampled_from(["ours", "theirs", "ask", "answer", "done"]), st.integers(1, 8)),
        min_size=20,
        max_size=60,
    ),
)
@example(earlier=0, steps=[("theirs", 1), ("ask", 1), ("theirs", 1), ("answer", 1)])
def test_whatever_is_written_while_the_store_is_read_is_handed_over_once(
    earlier: int, steps: list[tuple[str, int]]
) -> None:
    backlog = Backlog(earlier, urgency_step_s=5.0, max_in_memory=4, max_bytes=700)
    newest, asked = earlier, None
    out: list[int] = []
    in_memory: list[Handle] = []

    def answer(asked: tuple[int, int]) -> None:
        handles, _ = backlog.add_read(*stored(*asked))
        in_memory.extend(handles)
        out.extend(each.seq for each in handles)

    for what, count in steps:
        if what == "ours":
            seqs = range(newest + 1, newest + count + 1)
            handles = backlog.add_committed([handle() for _ in seqs], seqs, 0.0)
            in_memory += handles
            out += [each.seq for each in handles]
            newest += count
        elif what == "theirs":
            newest += count
            backlog.add_newest(newest)
        elif what == "ask" and asked is None and backlog.has_room:
            asked = backlog.next_range()
        elif what == "answer" and asked is not None:
            answer(asked)
            asked = None
        elif what == "done":
            backlog.remove_from_memory(in_memory[:count])
            del in_memory[:count]
        assert backlog.in_memory == len(in_memory)
        assert backlog.in_memory_bytes == sum(each.size_bytes for each in in_memory)
    while (asked := asked or backlog.next_range()) is not None:
        answer(asked)
        asked = None
    assert sorted(out) == list(range(1, newest + 1))
