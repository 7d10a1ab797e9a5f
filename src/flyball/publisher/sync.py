"""The publisher for threaded programs: the same publisher on an event loop of its own, in a thread of its own.

    with SyncPublisher("amqp://localhost/", channel="orders", outbox="orders.db") as publisher:
        handle = publisher.publish(b"...")     # from any thread; returns when it is safe in the outbox
        handle.confirmed()                     # waits for the broker

Calls from several threads share commits, as concurrent tasks do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from flyball.brokers import Message
from flyball.publisher.entry import Handle
from flyball.publisher.publisher import Counters, Publisher

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

    def confirmed(self, timeout_s: float | None = None) -> None:
        """Wait until the broker has it; TimeoutError after `timeout_s`."""
        self._publisher._call(asyncio.wait_for(self._handle.confirmed(), timeout_s))


class SyncPublisher:
    """Takes the arguments of `Publisher`; its methods may be called from any thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._arguments, self._options = arguments, options
        self._loop: asyncio.AbstractEventLoop
        self._publisher: Publisher

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flyball-publisher-loop", daemon=True)
        self._thread.start()

        async def opened() -> Publisher:
            return await Publisher(*self._arguments, **self._options).__aenter__()

        try:
            self._publisher = self._call(opened())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call(self._publisher.__aexit__(kind, error, trace))
        finally:
            self._stop()

    def publish(self, body: bytes, **options: Any) -> SyncHandle:
        """Accept a message (the options of `Publisher.publish`); returns when it is safe in the outbox."""
        return SyncHandle(self, self._call(self._publisher.publish(body, **options)))

    def publish_many(self, messages: Iterable[Message], **options: Any) -> list[SyncHandle]:
        handles = self._call(self._publisher.publish_many(messages, **options))
        return [SyncHandle(self, handle) for handle in handles]

    def drain(self) -> None:
        """Wait until everything that was accepted is confirmed."""
        self._call(self._publisher.drain())

    @property
    def counters(self) -> Counters:
        return self._publisher.counters

    def telemetry(self) -> list[dict[str, Any]]:
        return self._publisher.telemetry()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
