"""One AMQP connection that comes back by itself, and calls on its channels as coroutines.

A frozen server (SIGSTOP, a dead switch) keeps its sockets open and sends nothing, and AMQP's own heartbeats need
many seconds to notice. So while an answer is pending, nothing arrives, and the peer acknowledges nothing of what
is on its way there, a request is sent that costs the server nothing. If that is not answered either, it may be
behind megabytes in a buffer between here and the server: so another connection asks, and if that is not answered,
this one ends. The time is counted in turns of our own event loop, not in seconds: a loop that was busy elsewhere
must not count as a frozen server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pika
from pika.exceptions import AMQPError

from flyball.backoff import ReconnectDelay, delays_s
from flyball.brokers.core import pika_logs
from flyball.brokers.core.tcp_progress import MOVED_BYTES, tcp_progress
from flyball.brokers.port import BrokerError, Unreachable
from flyball.brokers.rabbitmq.config import RabbitSettings
from flyball.brokers.rabbitmq.errors import connection_error
from flyball.brokers.rabbitmq.pika_internals import (
    DeliveryConnection,
    close_with_consumers,
    socket_of,
    terminate,
    unsent_bytes,
)
from flyball.futures import wait_at_most

pika_logs.install()
logger = logging.getLogger(__name__)
# Without a handler Python prints it where nothing is set up, though callers get or count what fails.
logger.addHandler(logging.NullHandler())

_TICKS = 10  # checks per time-out
_CHECK_TICKS = 4  # of these another connection has for its answer
_ANSWER_S = 15.0  # the longest an answer may take while no data move
_CLOSE_S = 2.0  # the longest wait for the answer to the end of a connection


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
            return (await _answer(self.raw.connection, future)).method
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
            close_with_consumers(self.raw)
            await wait_at_most(done.wait(), _ANSWER_S)


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
        self._reconnect_delay = ReconnectDelay()
        self._outage_logged = False
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

    @property
    def written_bytes(self) -> int:
        """What was written to the connection since it began."""
        return 0 if self._connection is None else int(self._connection.bytes_sent)

    @property
    def delivered_bytes(self) -> int:
        """How much of it has left this machine, as far as the system reports that."""
        connection = self._connection
        if connection is None:
            return 0
        on_the_way = unsent_bytes(connection) + tcp_progress(socket_of(connection)).unacknowledged_bytes
        return int(connection.bytes_sent) - on_the_way

    async def wait_unblocked(self, timeout_s: float) -> bool:
        """Wait while the broker applies back-pressure; False if it still does."""
        with suppress(TimeoutError):
            await wait_at_most(self._unblocked.wait(), timeout_s)
        return not self.blocked

    async def open(self, *, retry: bool = True) -> None:
        """Connect if not connected; with `retry`, again and again until the time to reconnect is used up."""
        async with self._lock:
            deadline = time.monotonic() + self._settings.reconnect_s
            waits = delays_s(1000)
            while not self.is_open:
                await asyncio.sleep(self._reconnect_delay.remaining_s(time.monotonic()))
                if self._closing:
                    raise Unreachable(f"{self._settings.display_url} was closed by this program: open it again")
                try:
                    await self._connect()
                except Unreachable as error:
                    if not self._outage_logged:
                        self._outage_logged = True
                        logger.warning("%s", error)
                    if not retry or time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(next(waits))

    async def _connect(self) -> None:
        """Connect to the first host that answers."""
        for number, parameters in enumerate(self._settings.endpoints, 1):
            try:
                connection = await _open_connection(parameters, self._settings, self._on_loss)
                break
            except Unreachable:
                if number == len(self._settings.endpoints):
                    raise
        if self._closing:
            terminate(connection, Unreachable("the link was closed meanwhile"))
            raise Unreachable(f"{self._settings.display_url} was closed by this program: open it again")
        self._connection = connection
        self._outage_logged = False
        self._reconnect_delay.opened(time.monotonic())
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
            raw = self._connection.channel(
                on_open_callback=lambda opened: None if future.done() else future.set_result(opened)
            )
            raw.add_on_close_callback(lambda _, reason: None if future.done() else future.set_exception(reason))
            return OpenChannel(await _answer(self._connection, future))
        except (AMQPError, TimeoutError) as error:
            raise Unreachable(
                f"{self._settings.display_url} did not open a channel: {error!r}; try again"
            ) from None

    async def _watch(self, connection: Any) -> None:
        settings = self._settings
        tick_s = settings.answer_timeout_s / _TICKS
        usual_ticks = allowed_ticks = _TICKS * self._patience
        longest_ticks = max(usual_ticks, int(settings.blocked_timeout_s / tick_s))
        previous, acknowledged, idle_ticks = (-1, -1), 0, 0
        answer: asyncio.Task[bool] | None = None
        try:
            while connection is self._connection and connection.is_open:
                await asyncio.sleep(tick_s)
                for hook in list(self.on_tick):
                    hook()
                if not connection.is_open:
                    return
                # Data that the peer acknowledges show a live server as well as data that arrive.
                now, tcp = (
                    (connection.arrived_bytes, unsent_bytes(connection)),
                    tcp_progress(socket_of(connection)),
                )
                moved = now != previous or tcp.acknowledged_bytes - acknowledged >= MOVED_BYTES
                if moved or self.pending_answers <= 0 or self.blocked:
                    previous, acknowledged = now, tcp.acknowledged_bytes
                    idle_ticks, allowed_ticks = 0, usual_ticks
                    continue
                idle_ticks += 1
                if idle_ticks == _TICKS // 2:
                    with suppress(AMQPError):
                        self._control.basic_qos(prefetch_count=0, callback=lambda _: None)
                elif idle_ticks == allowed_ticks - _CHECK_TICKS:
                    # Where the network itself does not answer, another connection has nothing to add.
                    answer = None if tcp.in_flight else asyncio.create_task(self._answers_elsewhere(connection))
                elif idle_ticks >= allowed_ticks:
                    if answer is None or not answer.done() or not answer.result() or idle_ticks >= longest_ticks:
                        self.abort()
                        return
                    allowed_ticks *= 2
        finally:
            if answer is not None:
                answer.cancel()

    async def _answers_elsewhere(self, connection: Any) -> bool:
        """Whether the server answers on another connection."""
        timeout_s = self._settings.answer_timeout_s * _CHECK_TICKS / _TICKS
        try:
            opening = _open_connection(connection.params, self._settings, lambda *_: None)
            other = await wait_at_most(opening, timeout_s)
        except TimeoutError:
            return False
        except BrokerError as error:
            return not isinstance(error, Unreachable)
        with suppress(AMQPError):
            other.close()
        return True

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
        self._reconnect_delay.lost(time.monotonic())
        self._unblocked.set()
        for hook in list(self.on_lost):
            hook()

    async def close_channel(self, channel: OpenChannel) -> None:
        """Close a channel in good order; at once where the server does not listen, and so would not answer."""
        if self.blocked:
            with suppress(AMQPError):
                close_with_consumers(channel.raw)
            return
        self.pending_answers += 1  # a server that does not answer this is frozen
        try:
            await channel.close()
        finally:
            self.pending_answers -= 1

    async def close(self) -> None:
        self._closing = True
        connection, self._connection = self._connection, None
        if self._watcher is not None:
            self._watcher.cancel()
        if connection is None or not connection.is_open:
            return
        closed = asyncio.Event()
        connection.add_on_close_callback(lambda *_: closed.set())
        with suppress(AMQPError, TimeoutError):
            connection.close()
            await wait_at_most(closed.wait(), 0.0 if self.blocked else _CLOSE_S)
        if not closed.is_set():
            terminate(connection, Unreachable("no answer"))


async def _answer(connection: Any, future: asyncio.Future[Any]) -> Any:
    """Wait for an answer, which may be behind large messages on a slow link."""
    while True:
        before = _moved_bytes(connection)
        try:
            await asyncio.wait((future,), timeout=_ANSWER_S)
        except asyncio.CancelledError:
            if not future.cancel():
                future.exception()  # nobody asks for it any more
            raise
        if future.done():
            return future.result()
        if _moved_bytes(connection) - before < MOVED_BYTES:
            raise TimeoutError("no answer")


def _moved_bytes(connection: Any) -> int:
    return int(connection.arrived_bytes) + tcp_progress(socket_of(connection)).acknowledged_bytes


async def _open_connection(
    parameters: pika.ConnectionParameters,
    settings: RabbitSettings,
    on_loss: Callable[[Any, BaseException], None],
) -> DeliveryConnection:
    """Open one connection to one host."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def failed(connection: DeliveryConnection, error: BaseException) -> None:
        if not future.done():
            has_received = connection.arrived_bytes > 0
            future.set_exception(
                connection_error(error, settings, has_received=has_received, stream_lost=connection.stream_lost)
            )

    with pika_logs.log_as_details():
        connection = DeliveryConnection(
            parameters,
            on_open_callback=lambda opened: None if future.done() else future.set_result(opened),
            on_open_error_callback=failed,
            on_close_callback=on_loss,
        )
    try:
        await future
    except asyncio.CancelledError:
        if not connection.is_closed:
            terminate(connection, Unreachable("nobody waits for this connection any more"))
        raise
    return connection
