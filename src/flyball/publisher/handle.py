"""One accepted message on its way, and what its sender can await; and the queue in which they wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from flyball.brokers import Message
from flyball.errors import FlyballError
from flyball.steady_clock import SteadyClock
from flyball.store.outbox import LEAST_URGENT, Pending

_OVERHEAD_BYTES = 200
_size_bytes: Callable[[Handle], int] = attrgetter("size_bytes")
_CLOCK = SteadyClock()


class Rejected(FlyballError, ValueError):
    """Too few targets will ever store this message; the outbox keeps it as a dead letter."""


class Dropped(FlyballError, RuntimeError):
    """The outbox was full and the publisher drops messages then (`when_full="drop"`)."""


class PublisherClosed(FlyballError, RuntimeError):
    """The publisher is not open: not yet, or not any more. Says what became of the message."""


class ConfirmWaits:
    """The handles of a publisher whose confirms somebody waits for; `close` ends every such wait."""

    __slots__ = ("_fate", "_handles")

    def __init__(self) -> None:
        self._handles: set[Handle] = set()
        self._fate: str | None = None

    def add(self, handle: Handle) -> None:
        self._handles.add(handle)

    def discard(self, handle: Handle) -> None:
        self._handles.discard(handle)

    def check_open(self, handle: Handle) -> None:
        if self._fate is not None:
            raise self._error(handle)

    def close(self, fate: str) -> None:
        """No confirm comes any more; `fate` says what became of the messages without one."""
        self._fate = fate
        handles, self._handles = self._handles, set()
        for handle in handles:
            handle._fail(self._error(handle))

    def _error(self, handle: Handle) -> PublisherClosed:
        return PublisherClosed(f"the publisher closed before message {handle.id} was confirmed: {self._fate}")


class Handle:
    """An accepted message: `id`, and `await wait_confirmed()` until the broker (or as many as required) has it.

    Every target decides once: it confirms the message or refuses it for good. The message is confirmed when as
    many have confirmed it as are required; it is rejected when every target has decided and too few have confirmed
    it. So it is at most one of the two, once.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_future",
        "_left",
        "_undecided",
        "_waits",
        "accepted",
        "channel",
        "due_s",
        "id",
        "message",
        "repeat",
        "seq",
        "size_bytes",
        "urgency",
    )

    def __init__(
        self,
        message: Message,
        channel: str,
        urgency: int,
        size_bytes: int,
        waits: ConfirmWaits | None = None,
    ) -> None:
        self.id = message.id
        self.message = message
        self.channel = channel
        self.urgency = urgency
        self.size_bytes = size_bytes
        self.accepted = False
        """The message is safe in the outbox."""
        self.seq = 0
        self.due_s = 0.0
        self.repeat = False
        """It was confirmed before, and is sent again for want of a delivery receipt."""
        self._left = self._undecided = 1
        self._error: BaseException | None = None
        self._future: asyncio.Future[None] | None = None
        self._waits = waits

    def __repr__(self) -> str:
        state = "confirmed" if self.is_confirmed else "rejected" if self.is_rejected else "waiting"
        return f"<Handle {self.id} {state}>"

    @property
    def is_confirmed(self) -> bool:
        return self._left <= 0

    @property
    def is_rejected(self) -> bool:
        """Every target has decided, and too few have confirmed."""
        return self._undecided <= 0 < self._left

    def copy(self) -> Handle:
        """Return a new handle of the same message, to be sent once more."""
        fresh = Handle(self.message, self.channel, self.urgency, self.size_bytes)
        fresh.seq, fresh.due_s, fresh.accepted = self.seq, self.due_s, True
        return fresh

    async def wait_confirmed(self) -> None:
        """Wait for the confirm.

        Raises `Rejected` if too few brokers will ever store it, `Dropped` if dropped, `PublisherClosed` if the
        publisher closes first.
        """
        if self._is_done():
            return
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            if self._waits is not None:
                self._waits.add(self)
        await asyncio.shield(self._future)

    def _is_done(self) -> bool:
        """Whether the broker has it; raises if it will not be confirmed any more."""
        if self._error is not None:
            raise self._error
        if self._left <= 0:
            return True
        if self._waits is not None:
            self._waits.check_open(self)
        return False

    def _expect(self, required: int, targets: int) -> None:
        """So many targets get the message now, and so many of them have to confirm it."""
        self._left, self._undecided = required, targets

    def _confirm(self) -> bool:
        """Count the confirm of one target; True: the message is confirmed now."""
        self._undecided -= 1
        self._left -= 1
        if self._left != 0:
            return False
        if self._future is not None:
            self._end_wait()
            if not self._future.done():
                self._future.set_result(None)
        return True

    def _refuse(self, error: BaseException) -> None:
        """Count the refusal of one target. Who waits for the confirm hears `error` once too few are left."""
        self._undecided -= 1
        if self._left > self._undecided and self._error is None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        if self._future is not None:
            self._end_wait()
            if not self._future.done():
                self._future.set_exception(error)
                self._future.exception()  # seen: nobody may be waiting

    def _end_wait(self) -> None:
        if self._waits is not None:
            self._waits.discard(self)


def size_of(message: Message) -> int:
    """About how many bytes a message needs in memory."""
    return len(message.body) + len(message.key or b"") + _OVERHEAD_BYTES


def total_bytes(handles: Iterable[Handle]) -> int:
    return sum(map(_size_bytes, handles))


def from_store(pending: Pending, urgency_step_s: float) -> Handle:
    """Make the handle of a message of an earlier run, or of the application's own transaction."""
    message = pending.message
    handle = Handle(message, pending.channel, pending.urgency, size_of(message))
    handle.seq, handle.accepted = pending.seq, True
    # A clock that was set back since must not hold it back: nothing was accepted later than now.
    handle.due_s = min(pending.accepted_s, _CLOCK.now()) + pending.urgency * urgency_step_s
    return handle


class ReadyQueue:
    """Messages that wait for one target: by class, and between classes by due time (see `store.outbox`).

    `ordered`: as they came, whatever their class.
    """

    __slots__ = ("_classes", "_count", "_ordered", "size_bytes")

    def __init__(self, *, ordered: bool = False) -> None:
        self._classes: list[deque[Handle]] = [deque() for _ in range(LEAST_URGENT + 1)]
        self._count = 0
        self._ordered = ordered
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def urgent(self) -> int:
        """Messages of the most urgent class."""
        return 0 if self._ordered else len(self._classes[0])

    def add(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            self._classes[0 if self._ordered else handle.urgency].append(handle)
        self._count += len(handles)
        self.size_bytes += total_bytes(handles)

    def put_back(self, handles: list[Handle]) -> None:
        """Put these before all others of their class."""
        for handle in reversed(handles):
            self._classes[0 if self._ordered else handle.urgency].appendleft(handle)
        self._count += len(handles)
        self.size_bytes += total_bytes(handles)

    def take(self, count: int) -> list[Handle]:
        """Remove and return the `count` messages with the earliest due times.

        >>> queue = ReadyQueue()
        >>> for urgency, due_s in ((4, 20.0), (0, 1.0), (4, 21.0), (9, 0.5)):
        ...     handle = Handle(Message(b""), "alerts", urgency, 0)
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
        self.size_bytes -= total_bytes(batch)
        return batch

    def count_confirmed(self) -> int:
        """Count what enough other targets have confirmed."""
        return sum(handle.is_confirmed for each in self._classes for handle in each)

    def drop_confirmed(self) -> int:
        """Drop what enough other targets have confirmed; return how many."""
        before = self._count
        for urgency, each in enumerate(self._classes):
            self._classes[urgency] = deque(handle for handle in each if not handle.is_confirmed)
        self._count = sum(map(len, self._classes))
        self.size_bytes = sum(map(total_bytes, self._classes))
        return before - self._count


def _due(waiting: deque[Handle]) -> float:
    return waiting[0].due_s
