"""The publisher for threaded programs: the same publisher on an event loop of its own, in a thread of its own.

    with SyncPublisher("amqp://localhost/", channel="orders", outbox="orders.db") as publisher:
        handle = publisher.publish(b"...")     # from any thread; returns when it is safe in the outbox
        handle.wait_confirmed()                # waits for the broker

Calls from several threads share commits, as concurrent tasks do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from flyball.brokers import Message
from flyball.brokers.port import HeaderValue, Kind
from flyball.control.record import LoopRecord
from flyball.control.step import Controller
from flyball.errors import FlyballError
from flyball.futures import wait_at_most
from flyball.loop_thread import LoopEnded, LoopThread
from flyball.publisher.handle import Handle, PublisherClosed
from flyball.publisher.intake import WhenFull
from flyball.publisher.options import OrderingConfig, OutboxConfig, ReceiptConfig
from flyball.publisher.publisher import CLOSED, NOT_OPEN, Publisher, PublisherStats
from flyball.store import DeadLetter
from flyball.store.outbox import USUAL

Result = TypeVar("Result")


class SyncHandle:
    """A `Handle` whose confirm a thread waits for."""

    __slots__ = ("_handle", "_publisher", "accepted", "id")

    def __init__(self, publisher: SyncPublisher, handle: Handle) -> None:
        self._publisher, self._handle = publisher, handle
        self.id, self.accepted = handle.id, handle.accepted

    @property
    def is_confirmed(self) -> bool:
        return self._handle.is_confirmed

    def wait_confirmed(self, timeout_s: float | None = None) -> None:
        """Wait until the broker has it; TimeoutError after `timeout_s`."""

        async def wait() -> None:
            await wait_at_most(self._handle.wait_confirmed(), timeout_s)

        if self._handle._is_done():
            return
        try:
            self._publisher._call(wait())
        except PublisherClosed:
            if not self._handle._is_done():  # it says what became of the message
                raise


class SyncPublisher:
    """Takes the arguments of `Publisher`; its methods may be called from any thread."""

    def __init__(
        self,
        url: str | None = None,
        *,
        outbox: str | Path | OutboxConfig | None,
        channel: str | None = None,
        targets: Sequence[str | tuple[str, str]] | None = None,
        required_confirms: int | None = None,
        controller: str | Controller[Any] = "auto",
        batch: int = 1,
        batch_wait_s: float = 0.2,
        when_full: WhenFull = "wait",
        buffer: int = 10_000,
        urgency_step_s: float = 5.0,
        declare: Kind | None = None,
        ordering: OrderingConfig | None = None,
        receipts: ReceiptConfig | None = None,
        workers: int = 2,
        close_timeout_s: float = 30.0,
    ) -> None:
        self._publisher = Publisher(
            url,
            outbox=outbox,
            channel=channel,
            targets=targets,
            required_confirms=required_confirms,
            controller=controller,
            batch=batch,
            batch_wait_s=batch_wait_s,
            when_full=when_full,
            buffer=buffer,
            urgency_step_s=urgency_step_s,
            declare=declare,
            ordering=ordering,
            receipts=receipts,
            workers=workers,
            close_timeout_s=close_timeout_s,
        )
        self._loop: LoopThread | None = None
        self._entering = threading.Lock()

    def __enter__(self) -> Self:
        with self._entering:
            self._publisher._check_new()
            if self._loop is not None:
                raise PublisherClosed("this publisher is open already, or another thread opens it")
            loop = self._loop = LoopThread("flyball-publisher-loop")
        try:
            self._call(self._publisher.__aenter__())
        except BaseException:
            loop.stop()
            self._loop = None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = self._loop
        if loop is None or loop.is_foreign:  # a forked child leaves it to its parent
            return
        try:
            with suppress(LoopEnded):  # another thread closed it meanwhile
                loop.run(self._publisher.__aexit__(kind, error, trace))
        finally:
            loop.stop()

    def publish(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        urgency: int = USUAL,
        headers: Mapping[str, HeaderValue] | None = None,
        event_time_s: float | None = None,
        content_type: str | None = None,
        id: str | None = None,
        channel: str | None = None,
    ) -> SyncHandle:
        """Accept a message; returns when it is safe in the outbox."""
        accepted = self._publisher.publish(
            body,
            key=key,
            urgency=urgency,
            headers=headers,
            event_time_s=event_time_s,
            content_type=content_type,
            id=id,
            channel=channel,
        )
        return SyncHandle(self, self._call(accepted))

    def publish_many(
        self, messages: Iterable[Message], *, urgency: int = USUAL, channel: str | None = None
    ) -> list[SyncHandle]:
        """Accept many at once: one wait for the disk."""
        handles = self._call(self._publisher.publish_many(messages, urgency=urgency, channel=channel))
        return [SyncHandle(self, handle) for handle in handles]

    def drain(self) -> None:
        """Wait until everything that was accepted is confirmed or rejected."""
        self._call(self._publisher.drain())

    def dead_letters(self, limit: int = 1000, *, after: int = 0) -> list[DeadLetter]:
        """Read the first `limit` dead letters of the outbox with a number above `after`."""
        return self._call(self._publisher.dead_letters(limit, after=after))

    def replay_dead_letters(self, numbers: Sequence[int] | None = None) -> int:
        """Send dead letters again, by their numbers (None: all); return how many."""
        return self._call(self._publisher.replay_dead_letters(numbers))

    def delete_dead_letters(self, numbers: Sequence[int] | None = None) -> int:
        """Remove dead letters for good, by their numbers (None: all); return how many."""
        return self._call(self._publisher.delete_dead_letters(numbers))

    @property
    def stats(self) -> PublisherStats:
        """Counts since it was opened, and the settings of each target."""
        return self._observe(lambda: self._publisher.stats)

    @property
    def errors(self) -> list[FlyballError]:
        """The last error of each target that stores nothing at the moment."""
        return self._observe(lambda: self._publisher.errors)

    @property
    def problems(self) -> list[str]:
        """One sentence for each target that stores nothing at the moment, and one if messages were rejected."""
        return self._observe(lambda: self._publisher.problems)

    def steps(self, channel: str | None = None) -> list[LoopRecord]:
        """The newest steps of the controller, oldest first: what it saw, what it set, and why."""
        return self._observe(lambda: self._publisher.steps(channel))

    def _observe(self, read: Callable[[], Result]) -> Result:
        """Read between two steps of the publisher: counts that belong together are of one moment."""
        loop = self._loop
        return read() if loop is None else loop.call(read)

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        loop = self._loop
        if loop is None:
            work.close()
            raise PublisherClosed(NOT_OPEN)
        try:
            return loop.run(work)
        except LoopEnded:
            self._publisher._check_open()
            raise PublisherClosed(CLOSED) from None
