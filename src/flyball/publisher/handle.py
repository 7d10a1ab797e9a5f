"""One accepted message on its way, and what its sender can await; and the queue in which they wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from types import UnionType

from flyball.brokers import Message
from flyball.errors import FlyballError, InvalidValue
from flyball.store.outbox import LEAST_URGENT, Pending


class Rejected(FlyballError, ValueError):
    """The broker will never store this message; it was removed from the outbox."""


class Dropped(FlyballError, RuntimeError):
    """The outbox was full and the publisher drops messages then (`when_full="drop"`)."""


class Handle:
    """An accepted message: `id`, and `await wait_confirmed()` until the broker (or as many as required) has it."""

    __slots__ = (
        "__weakref__",
        "_error",
        "_future",
        "_left",
        "accepted",
        "channel",
        "due_s",
        "id",
        "message",
        "seq",
        "size_bytes",
        "urgency",
    )

    def __init__(self, message: Message, channel: str, urgency: int, size_bytes: int, required: int) -> None:
        self.id = message.id
        self.message = message
        self.channel = channel
        self.urgency = urgency
        self.size_bytes = size_bytes
        self.accepted = False
        """The message is safe in the outbox."""
        self.seq = 0
        self.due_s = 0.0
        self._left = required
        self._error: BaseException | None = None
        self._future: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Handle {self.id} {'confirmed' if self.is_confirmed else 'waiting'}>"

    @property
    def is_confirmed(self) -> bool:
        return self._left <= 0

    def copy(self, required: int) -> Handle:
        """Return a new handle of the same message, to be sent once more."""
        fresh = Handle(self.message, self.channel, self.urgency, self.size_bytes, required)
        fresh.seq, fresh.due_s, fresh.accepted = self.seq, self.due_s, True
        return fresh

    async def wait_confirmed(self) -> None:
        """Wait for the confirm; raises `Rejected` if no broker will ever store it, `Dropped` if dropped."""
        if self._error is not None:
            raise self._error
        if self._left <= 0:
            return
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._future)

    def _confirm(self) -> bool:
        """Count the confirm of one target; True: it was the last one required."""
        self._left -= 1
        if self._left != 0:
            return False
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        return True

    def _fail(self, error: BaseException) -> None:
        self._error = error
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # seen: nobody may be waiting


def check_fit(message: Message) -> None:
    """Refuse a message that cannot be stored at the call: later it would block others."""
    if type(message.body) is bytes and type(message.id) is str and message.key is None and not message.headers:
        return  # the everyday case, at a tenth of the cost
    wanted: tuple[tuple[str, object, type | UnionType], ...] = (
        ("body", message.body, bytes),
        ("id", message.id, str),
        ("key", message.key, bytes | None),
        *((f"header {name!r}", value, str | int | float | bytes) for name, value in message.headers.items()),
    )
    for what, value, kind in wanted:
        if not isinstance(value, kind):
            name = kind.__name__ if isinstance(kind, type) else str(kind)
            raise InvalidValue(f"the {what} of a message must be {name}, got {type(value).__name__} {value!r:.60}")


def from_store(pending: Pending, required: int, urgency_step_s: float) -> Handle:
    """Make the handle of a message of an earlier run, or of the application's own transaction."""
    message = pending.message
    handle = Handle(message, pending.channel, pending.urgency, len(message.body), required)
    handle.seq, handle.accepted = pending.seq, True
    handle.due_s = pending.accepted_s + pending.urgency * urgency_step_s
    return handle


class ReadyQueue:
    """Messages that wait for one target: by class, and between classes by due time (see `store.outbox`).

    `ordered`: as they came, whatever their class.
    """

    __slots__ = ("_classes", "_count", "_ordered")

    def __init__(self, *, ordered: bool = False) -> None:
        self._classes: list[deque[Handle]] = [deque() for _ in range(LEAST_URGENT + 1)]
        self._count = 0
        self._ordered = ordered

    def __len__(self) -> int:
        return self._count

    @property
    def urgent(self) -> int:
        """Messages of the most urgent class."""
        return 0 if self._ordered else len(self._classes[0])

    def add(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            self._classes[0 if self._ordered else handle.urgency].append(handle)
            self._count += 1

    def put_back(self, handles: list[Handle]) -> None:
        """Put these before all others of their class."""
        for handle in reversed(handles):
            self._classes[0 if self._ordered else handle.urgency].appendleft(handle)
        self._count += len(handles)

    def take(self, count: int) -> list[Handle]:
        """Remove and return the `count` messages with the earliest due times.

        >>> queue = ReadyQueue()
        >>> for urgency, due_s in ((4, 20.0), (0, 1.0), (4, 21.0), (9, 0.5)):
        ...     handle = Handle(Message(b""), "alerts", urgency, 0, 1)
        ...     handle.due_s = due_s
        ...     queue.add([handle])
        >>> [handle.due_s for handle in queue.take(3)], len(queue)
        ([0.5, 1.0, 20.0], 1)
        """
        waiting = [each for each in self._classes if each]
        if len(waiting) == 1:
            only = waiting[0]
            batch = [only.popleft() for _ in range(min(count, len(only)))]
        else:
            batch = []
            while waiting and len(batch) < count:
                first = min(waiting, key=_due)
                batch.append(first.popleft())
                if not first:
                    waiting.remove(first)
        self._count -= len(batch)
        return batch

    def drop_confirmed(self) -> int:
        """Drop what enough other targets have confirmed; return how many."""
        before = self._count
        for urgency, each in enumerate(self._classes):
            self._classes[urgency] = deque(handle for handle in each if not handle.is_confirmed)
        self._count = sum(map(len, self._classes))
        return before - self._count


def _due(waiting: deque[Handle]) -> float:
    return waiting[0].due_s
