"""The demo's group: three consumers share the six queues of a topic, one of them is lost and comes back.

Every queue is read by one member at a time, so its messages are handled in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from flyball.brokers import Message, connect
from flyball.consumer.consumer import Consumer
from flyball.futures import wait_at_most
from flyball.groups.config import GroupConfig
from flyball.groups.group_store import GroupStore
from flyball.groups.policy.state import GroupState
from flyball.store import open_database

_GROUP, _TOPIC, _QUEUES = "demo", "orders", 6
_MEMBERS = ("m1", "m2", "m3")
_BATCH = 5  # messages for each queue
_EVERY_S = 0.2
_LOOK_S = 0.1
_LONGEST_S = 30.0  # until the queues are shared


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """`moves`: queues that passed from one live member to another; `fewest_moves`: what balance alone needed.

    `complete`: the member was back before the input of the demo ended.
    """

    sent: int
    lost: int
    repeated: int
    disordered: int
    moves: int
    fewest_moves: int
    complete: bool


@dataclass
class _Handled:
    """The numbers of the messages that were handled, by queue, and who handled the latest."""

    numbers: dict[int, list[int]] = field(default_factory=lambda: {queue: [] for queue in range(_QUEUES)})
    owners: dict[int, str] = field(default_factory=dict)

    def add(self, member: str, body: bytes) -> None:
        queue, number = map(int, body.split())
        self.numbers[queue].append(number)
        self.owners[queue] = member

    def different(self) -> int:
        return sum(len(set(numbers)) for numbers in self.numbers.values())

    def shares(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in sorted(Counter(self.owners.values()).items()))

    def is_shared_by(self, members: Collection[str]) -> bool:
        sizes = Counter(self.owners.values())
        even = set(sizes) == set(members) and max(sizes.values()) - min(sizes.values()) <= 1
        return even and len(self.owners) == _QUEUES


async def run_demo_group(folder: Path, input_ended: asyncio.Event, say: Callable[[str], None]) -> GroupSummary:
    """Let a group lose and regain a member; it ends early if the input of the demo does."""
    url, store = f"sqlite:///{folder}/{_TOPIC}.db", f"sqlite:///{folder}/groups.db"
    folder.mkdir(parents=True, exist_ok=True)
    handled, sent_all = _Handled(), asyncio.Event()
    async with await connect(url) as broker:
        for queue in range(_QUEUES):
            await broker.declare(f"{_TOPIC}.{queue}", "queue")
    sending = asyncio.create_task(_send(url, sent_all))
    lost, rest = _MEMBERS[1], [_MEMBERS[0], _MEMBERS[2]]
    complete, sent = False, 0
    try:
        async with AsyncExitStack() as others:
            for name in rest:
                await others.enter_async_context(_make_consumer(url, store, name, handled))
            async with _make_consumer(url, store, lost, handled):
                shared = await _until_shared(handled, _MEMBERS, input_ended)
            say(f"a group shares {_QUEUES} queues ({handled.shares()}); now {lost} stops")
            shared = shared and await _until_shared(handled, rest, input_ended)
            say(f"the others read the queues of {lost} ({handled.shares()}); it comes back")
            async with _make_consumer(url, store, lost, handled):
                complete = await _until_shared(handled, _MEMBERS, input_ended) and shared
                say(f"the group shares its queues again ({handled.shares()})")
                sent_all.set()
                sent = await sending
                await _until(lambda: handled.different() >= sent, None)
    finally:
        sent_all.set()
        await asyncio.wait([sending])
    state = await asyncio.to_thread(_read_state, store)
    return GroupSummary(
        sent=sent,
        lost=sent - handled.different(),
        repeated=sum(map(len, handled.numbers.values())) - handled.different(),
        disordered=sum(a > b for numbers in handled.numbers.values() for a, b in itertools.pairwise(numbers)),
        moves=sum(record.moves for record in state.history),
        fewest_moves=sum(record.fewest_moves or 0 for record in state.history),
        complete=complete,
    )


def _make_consumer(url: str, store: str, name: str, handled: _Handled) -> Consumer:
    async def handle(message: Message) -> None:
        await asyncio.sleep(0.001)
        handled.add(name, message.body)

    group = GroupConfig(
        name=_GROUP, topics={_TOPIC: _QUEUES}, store=store, member=name, heartbeat_s=0.5, session_timeout_s=3.0
    )
    return Consumer(url, group=group, handler=handle, name=name, window=1)  # one at a time, so in order


async def _send(url: str, sent_all: asyncio.Event) -> int:
    """A few messages for every queue, again and again; each is its queue and its number there. Return how many."""
    async with await connect(url) as broker:
        senders = [await broker.sender(f"{_TOPIC}.{queue}") for queue in range(_QUEUES)]
        sent = 0
        while not sent_all.is_set():
            for queue, sender in enumerate(senders):
                await sender.send_batch([Message(b"%d %d" % (queue, sent + n)) for n in range(_BATCH)])
            sent += _BATCH
            with suppress(TimeoutError):
                await wait_at_most(sent_all.wait(), _EVERY_S)
    return sent * _QUEUES


async def _until_shared(handled: _Handled, members: Collection[str], input_ended: asyncio.Event) -> bool:
    """Wait until these members read all queues; False: the input ended before."""
    return await _until(lambda: handled.is_shared_by(members), input_ended)


async def _until(condition: Callable[[], bool], input_ended: asyncio.Event | None) -> bool:
    for _ in range(int(_LONGEST_S / _LOOK_S)):
        if condition():
            return True
        if input_ended is not None and input_ended.is_set():
            return False
        await asyncio.sleep(_LOOK_S)
    return False


def _read_state(store: str) -> GroupState:
    with closing(open_database(store)) as database:
        return GroupStore(database, _GROUP).read().state
