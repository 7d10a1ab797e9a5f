"""How rows that Spark may write more than once are named and numbered, so that a channel shows each of them once.

Spark repeats a batch that it did not see finished, and a task that failed or was slow, with the same rows. Row i
of batch b of a producer is sent under the sequence number b·2³² + i: a log that drops repeats takes it once, also
while an earlier attempt still writes. Where a plan delivers the rows of a partition in another order the second
time (after a shuffle), numbers alone would mix rows up. So ids are derived from what is in a row, not from where
it stands, and a task that finds something of its batch in the log asks by id what is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

ROWS_PER_BATCH = 2**32
WRITE_HEADER = "flyball-write"
"""Names the write in messages whose ids were chosen by the user."""


@dataclass(frozen=True)
class WriteTask:
    """One task's part of a write: a partition of a batch. `write` is the id of the query, or of a batch job.

    >>> task = WriteTask("q", partition=1, batch=3)
    >>> task.producer, task.first_number // 2**32, task.mark
    ('q-1', 3, '77f32c2d66459502.3')
    >>> task.batch_of("77f32c2d66459502.2-0123", {}), task.batch_of("77f32c2dffffffff.2-0123", {})
    (2, None)
    """

    write: str
    partition: int
    batch: int

    @property
    def producer(self) -> str:
        return f"{self.write}-{self.partition}"

    @property
    def first_number(self) -> int:
        return self.batch * ROWS_PER_BATCH

    @cached_property
    def mark(self) -> str:
        """What ids of this task's messages begin with."""
        return f"{self._prefix}{self.batch}"

    @cached_property
    def _prefix(self) -> str:
        return f"{hashlib.blake2b(self.producer.encode(), digest_size=8).hexdigest()}."

    def batch_of(self, id: str, headers: Mapping[str, object]) -> int | None:
        """The batch of a stored message, if this producer wrote it."""
        mark = id.partition("-")[0] if id.startswith(self._prefix) else headers.get(WRITE_HEADER)
        if not isinstance(mark, str) or not mark.startswith(self._prefix):
            return None
        number = mark.removeprefix(self._prefix)
        return int(number) if number.isdecimal() else None

    def stored_before(self, last_sequence: int | None) -> int:
        """How many numbers of this batch the log has reached: 0 if no attempt stored anything yet.

        >>> task = WriteTask("q", 0, batch=1)
        >>> task.stored_before(None), task.stored_before(2**32 - 1), task.stored_before(2**32 + 4)
        (0, 0, 5)
        """
        return 0 if last_sequence is None else max(0, last_sequence + 1 - self.first_number)


class MessageIds:
    """Ids for the messages of one task: the same whenever the same rows come, in whatever order.

    Rows that are alike are told apart by their number among those, so none of them is taken for a repeat.

    >>> ids = MessageIds("m.0")
    >>> [ids.derive(body) for body in (b"a", b"b", b"a")]
    ['m.0-1ba3c523e770f3313cc91ab1', 'm.0-78c75aee12eacf55ab4b0120', 'm.0-1ba3c523e770f3313cc91ab1-1']
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._seen: dict[bytes, int] = {}

    def derive(
        self,
        body: bytes,
        key: bytes | None = None,
        headers: Mapping[str, str | bytes] = MappingProxyType({}),
        event_time_s: float | None = None,
    ) -> str:
        digest = _digest(body, key, headers, event_time_s)
        alike = self._seen.get(digest, 0)
        self._seen[digest] = alike + 1
        id = f"{self._mark}-{digest.hex()}"
        return f"{id}-{alike}" if alike else id


def _digest(
    body: bytes, key: bytes | None, headers: Mapping[str, str | bytes], event_time_s: float | None
) -> bytes:
    content = hashlib.blake2b(body, digest_size=12)
    if key is not None:
        content.update(b"\0key%d:" % len(key) + key)
    for name, value in sorted(headers.items()):
        encoded = value if isinstance(value, bytes) else value.encode()
        content.update(b"\0header%d:%d:" % (len(name.encode()), len(encoded)) + name.encode() + encoded)
    if event_time_s is not None:
        content.update(b"\0time" + event_time_s.hex().encode())
    return content.digest()
