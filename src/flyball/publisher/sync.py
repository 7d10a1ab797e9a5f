"""The publisher for threaded programs: the same publisher on an event loop of its own, in a thread of its own.

    with SyncPublisher("amqp://localhost/", channel="orders", outbox="orders.db") as publisher:
        handle = publisher.publish(b"...")     # from any thread; returns when it is safe in the outbox
        handle.confirmed()                     # waits for the broker

Calls from several threads share commits, as concurrent tasks do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from flyball.brokers import Message
from flyball.brokers.port import HeaderValue, Kind
from flyball.control.step import Controller
from flyball.publisher.entry import Handle
from flyball.publisher.intake import WhenFull
from flyball.publisher.options import KeepUntil
from flyball.publisher.publisher import Counters, Publisher
from flyball.store.outbox import USUAL
from flyball.store.sqlite import Durability

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

    def __init__(
        self,
        url: str | None = None,
        *,
        outbox: str | Path,
        channel: str | None = None,
        targets: Sequence[str | tuple[str, str]] | None = None,
        require: int | None = None,
        law: str | Controller[Any] = "auto",
        batch: int = 1,
        when_full: WhenFull = "wait",
        buffer: int = 10_000,
        max_bytes: int | None = None,
        durability: Durability = "power",
        ageing_s: float = 5.0,
        max_wait_s: float = 0.2,
        declare: Kind | None = None,
        ordered: bool = False,
        producer: str | None = None,
        first_sequence: int = 0,
        keep_until: KeepUntil = "confirm",
        receipts: str | None = None,
        receipt_timeout_s: float = 60.0,
        workers: int = 2,
        close_timeout_s: float = 30.0,
    ) -> None:
        self._publisher = Publisher(
            url,
            outbox=outbox,
            channel=channel,
            targets=targets,
            require=require,
            law=law,
            batch=batch,
            when_full=when_full,
            buffer=buffer,
            max_bytes=max_bytes,
            durability=durability,
            ageing_s=ageing_s,
            max_wait_s=max_wait_s,
            declare=declare,
            ordered=ordered,
            producer=producer,
            first_sequence=first_sequence,
            keep_until=keep_until,
            receipts=receipts,
            receipt_timeout_s=receipt_timeout_s,
            workers=workers,
            close_timeout_s=close_timeout_s,
        )
        self._loop: asyncio.AbstractEventLoop

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flyball-publisher-loop", daemon=True)
        self._thread.start()
        try:
            self._call(self._publisher.__aenter__())
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
