"""One AMQP connection that comes back by itself, and calls on its channels as coroutines.

A frozen server (SIGSTOP, a dead switch) keeps its sockets open and sends nothing, and AMQP's own heartbeats need
many seconds to notice. So while an answer is pending and nothing arrives, a request is sent that costs the server
nothing; if that is not answered either, the connection ends. The time without data is counted in turns of our own
event loop, not in seconds: a loop that was busy elsewhere must not count as a frozen server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pika.exceptions import AMQPError

from flyball.backoff import delays_s
from flyball.brokers.port import Unreachable
from flyball.brokers.rabbitmq.config import RabbitSettings
from flyball.brokers.rabbitmq.errors import connection_error
from flyball.brokers.rabbitmq.pika_internals import DeliveryConnection, terminate, unsent_bytes

# Without a handler Python prints the library's warnings; its errors reach the caller as exceptions.
logging.getLogger("pika").addHandler(logging.NullHandler())

_TICKS = 10  # checks per time-out
_ANSWER_S = 15.0  # the longest an answer may take from a server that is otherwise alive


class OpenChannel:
    """A channel whose calls are awaited; when it closes, they fail with the reason."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.reason: BaseException | None = None
        self.on_close: Callable[[BaseException], None] | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        raw.add_on_close_callback(self._closed)

    @property
    def is_open(self) -> bool:
        return bool(self.raw.is_open)

    async def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of the raw channel that answers through `callback`; the answering frame's method."""
        if self.reason is not None:
            raise self.reason
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            method(
                *arguments, callback=lambda frame: None if future.done() else future.set_result(frame), **options
            )
            return (await asyncio.wait_for(future, _ANSWER_S)).method
        finally:
            self._waiting.discard(future)

    def _closed(self, _channel: Any, reason: BaseException) -> None:
        self.reason = reason
        for future in self._waiting:
            if not future.done():
                future.set_exception(reason)
        if self.on_close is not None:
            self.on_close(reason)

    async def close(self) -> None:
        if not self.raw.is_open:
            return
        done = asyncio.Event()
        previous = self.on_close

        def closed(reason: BaseException) -> None:
            done.set()
            if previous is not None:
                previous(reason)

        self.on_close = closed
        with suppress(AMQPError, TimeoutError):
            self.raw.close()
            await asyncio.wait_for(done.wait(), _ANSWER_S)


class Link:
    """A connection that is opened again after a loss. `open` does nothing while it is up."""

    def __init__(self, settings: RabbitSettings, patience: int) -> None:
        self._settings = settings
        self._patience = patience  # time-outs without data after which the connection ends
        self._connection: Any = None
        self._lock = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self._control: Any = None
        self._unblocked = asyncio.Event()
        self._unblocked.set()
        self._closing = False
        self.pending_answers = 0
        """Answers that callers wait for; while it is 0, a server that sends nothing is not suspect."""
        self.on_lost: list[Callable[[], None]] = []
        self.on_tick: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        return self._connection is not None and bool(self._connection.is_open)

    @property
    def blocked(self) -> bool:
        return not self._unblocked.is_set()

    @property
    def server_version(self) -> str:
        properties = getattr(self._connection, "server_properties", None) or {}
        return str(properties.get("version", ""))

    async def wait_unblocked(self, timeout_s: float) -> bool:
        """Wait while the broker applies back-pressure; False if it still does."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._unblocked.wait(), timeout_s)
        return not self.blocked

    async def open(self, *, retry: bool = True) -> None:
        """Connect if not connected; with `retry`, again and again until the time to reconnect is used up."""
        async with self._lock:
            deadline = time.monotonic() + self._settings.reconnect_s
            waits = delays_s(1000)
            while not self.is_open:
                if self._closing:
                    raise Unreachable(f"{self._settings.display_url} was closed by this program: open it again")
                try:
                    await self._connect()
                except Unreachable:
                    if not retry or time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(next(waits))

    async def _connect(self) -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def failed(_connection: Any, error: BaseException) -> None:
            if not future.done():
                future.set_exception(connection_error(error, self._settings))

        connection = DeliveryConnection(
            self._settings.parameters,
            on_open_callback=lambda opened: None if future.done() else future.set_result(opened),
            on_open_error_callback=failed,
            on_close_callback=self._on_loss,
        )
        self._connection = await future
        self._unblocked.set()
        connection.add_on_connection_blocked_callback(lambda *_: self._unblocked.clear())
        connection.add_on_connection_unblocked_callback(lambda *_: self._unblocked.set())
        try:
            self._control = (await self.channel()).raw
        except BaseException:
            self.abort()  # without `_watch`, callers could wait without end
            raise
        self._watcher = asyncio.create_task(self._watch(connection))

    async def channel(self) -> OpenChannel:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._connection.channel(
                on_open_callback=lambda opened: None if future.done() else future.set_result(opened)
            )
            return OpenChannel(await asyncio.wait_for(future, _ANSWER_S))
        except (AMQPError, TimeoutError) as error:
            raise Unreachable(
                f"{self._settings.display_url} did not open a channel: {error!r}; try again"
            ) from None

    async def _watch(self, connection: Any) -> None:
        tick_s = self._settings.answer_timeout_s / _TICKS
        previous, idle_ticks = (-1, -1), 0
        while connection is self._connection and connection.is_open:
            await asyncio.sleep(tick_s)
            for hook in list(self.on_tick):
                hook()
            if not connection.is_open:
                return
            # Data that still leaves our buffer shows a live server as well as data that arrives.
            now = (connection.bytes_received, unsent_bytes(connection))
            if now != previous or self.pending_answers <= 0 or self.blocked:
                previous, idle_ticks = now, 0
                continue
            idle_ticks += 1
            if idle_ticks == _TICKS // 2:
                with suppress(AMQPError):
                    self._control.basic_qos(prefetch_count=0, callback=lambda _: None)
            elif idle_ticks >= _TICKS * self._patience:
                self.abort()

    def abort(self) -> None:
        """Drop a connection whose server does not answer, without waiting for an answer to the close."""
        connection = self._connection
        if connection is None:
            return
        terminate(connection, Unreachable(f"{self._settings.display_url} does not answer any more"))
        self._on_loss(connection, Unreachable("no answer"))

    def _on_loss(self, connection: Any, _error: BaseException) -> None:
        if connection is not self._connection:
            return  # reported before
        self._connection = None
        self._unblocked.set()
        for hook in list(self.on_lost):
            hook()

    async def close(self) -> None:
        self._closing = True
        connection, self._connection = self._connection, None
        if self._watcher is not None:
            self._watcher.cancel()
        if connection is None or not connection.is_open:
            return
        closed = asyncio.Event()
        connection.add_on_close_callback(lambda *_: closed.set())
        with suppress(AMQPError):
            connection.close()
        try:
            await asyncio.wait_for(closed.wait(), 5.0)
        except TimeoutError:
            terminate(connection, Unreachable("no answer"))
