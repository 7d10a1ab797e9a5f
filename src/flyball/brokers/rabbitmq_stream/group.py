"""Who of a group reads which partition, and how far it got: kept in small AMQP queues beside the streams.

RabbitMQ 3.10 has no groups on streams, and its own offset tracking puts entries into the stream. So, for each
(log, group, partition):

* the **lock** queue has at most one, exclusive, consumer: the partition's owner. The server frees it the moment
  the owner's connection is gone, whatever the reason;
* the **position** queue holds one persistent message, the next offset to read (`x-max-length` 1: a newer one
  pushes the older out).

and for each (log, group) two queues whose number of consumers is all that matters: **members**, and **hungry**,
on which a member waits that owns less than its fair share; a member that owns more then lets one go.

All of it runs on a thread of its own with a blocking connection; it tells the receiver on the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import pika
from pika.exceptions import AMQPError, ChannelClosed, ProbableAuthenticationError

from flyball.backoff import delays_s
from flyball.brokers.core.positions import Place
from flyball.brokers.port import LoginRefused, Unreachable
from flyball.brokers.rabbitmq_stream.connection import StreamSettings

# Without a handler Python prints a library's warnings; ours are exceptions, theirs belong to whoever asks.
logging.getLogger("pika").addHandler(logging.NullHandler())

_TICK_S = 0.25
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Reader(Protocol):
    """What the thread tells; every call may come from that thread."""

    def gained(self, place: Place, position: int) -> None:
        """This partition is ours, from that offset on."""

    def released(self, place: Place) -> int | None:
        """Stop reading it; the position to leave behind, once nothing more of it is handed out."""

    def lost(self) -> None:
        """Every partition is gone: the connection broke."""


def queue_names(group: str, place: Place) -> tuple[str, str]:
    log, number = place
    return f"flyball.lock.{group}.{log}-{number}", f"flyball.position.{group}.{log}-{number}"


def open_amqp(settings: StreamSettings) -> pika.BlockingConnection:
    url = settings.url
    options = None if settings.tls is None else pika.SSLOptions(settings.tls, settings.host)
    try:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                host=settings.host,
                port=settings.amqp_port,
                virtual_host=settings.vhost,
                credentials=pika.PlainCredentials(url.user or "guest", url.password or "guest"),
                heartbeat=10,
                blocked_connection_timeout=10,
                socket_timeout=5,
                ssl_options=options,
            )
        )
    except ProbableAuthenticationError:
        raise LoginRefused(f"{url} refused the login over AMQP: check user and password") from None
    except (AMQPError, OSError):
        raise Unreachable(
            f"nobody answers AMQP at {settings.host}:{settings.amqp_port}, where groups of {url} keep their "
            "state: set its option amqp_port"
        ) from None


def peek_position(channel: Any, group: str, place: Place, attempts: int = 3) -> int | None:
    """The stored position; the message stays. Somebody else may be looking at it just now: look again."""
    name = queue_names(group, place)[1]
    for attempt in range(attempts):
        frame, _, body = channel.basic_get(name)
        if frame is not None:
            channel.basic_nack(frame.delivery_tag, requeue=True)
            return int(body)
        if attempt < attempts - 1:
            time.sleep(0.015)
    return None


@dataclass(slots=True)
class _Log:
    partitions: int
    owned: dict[int, Any] = field(default_factory=dict)
    """Partition → the channel whose consumer holds the lock."""
    hungry: str | None = None


class GroupSeat:
    """One member's place in a group."""

    def __init__(self, settings: StreamSettings, group: str, reader: Reader) -> None:
        self._settings = settings
        self._group = group
        self._reader = reader
        self._logs: dict[str, _Log] = {}
        self._new: dict[str, int] = {}
        self._positions: dict[Place, int] = {}
        self._lock = threading.Lock()
        self._connection: Any = None
        self._channel: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flyball-stream-group", daemon=True)

    def start(self, logs: Mapping[str, int], begins: Mapping[Place, int]) -> None:
        """Connect, fix where the group begins in partitions it does not know yet, and take part. Blocks."""
        self._connect()
        for log, partitions in logs.items():
            self._join(log, partitions, begins)
        self._thread.start()

    def add(self, log: str, partitions: int) -> None:
        """A log that appeared later: the group reads it from its beginning."""
        with self._lock:
            self._new[log] = partitions

    def store(self, positions: Mapping[Place, int], written: Callable[[], object]) -> None:
        """Write positions, the newest of each place; `written` is called, from our thread, when they are sent."""

        def write() -> None:
            try:
                self._store_now()
            finally:
                written()

        with self._lock:
            self._positions.update(positions)
        try:
            self._connection.add_callback_threadsafe(write)
        except (AMQPError, OSError):  # on the way back; the partitions are gone until then
            written()

    def stop(self, positions: Mapping[Place, int]) -> None:
        """Store and leave. Blocks for a moment."""
        with self._lock:
            self._positions.update(positions)
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(15)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except (AMQPError, OSError):
                self._reader.lost()
                for each in self._logs.values():
                    each.owned.clear()
                self._come_back()
        with suppress(AMQPError, OSError):
            self._store_now()
            self._connection.close()

    def _come_back(self) -> None:
        for delay_s in delays_s(1000, longest_s=2.0):
            if self._stopping.wait(delay_s):
                return
            with suppress(Unreachable, LoginRefused, AMQPError, OSError):
                self._connect()
                for log, each in self._logs.items():
                    each.hungry = None
                    self._attend(log)
                return

    def _connect(self) -> None:
        self._connection = open_amqp(self._settings)
        self._channel = self._connection.channel()

    def _join(self, log: str, partitions: int, begins: Mapping[Place, int]) -> None:
        self._logs[log] = _Log(partitions)
        for number in range(partitions):
            place = (log, number)
            lock, position = queue_names(self._group, place)
            self._channel.queue_declare(lock, durable=True)
            self._channel.queue_declare(position, durable=True, arguments={"x-max-length": 1})
            if peek_position(self._channel, self._group, place) is None:
                self._write(place, begins.get(place, 0))
        self._attend(log)

    def _attend(self, log: str) -> None:
        for kind in ("members", "hungry"):
            self._channel.queue_declare(self._crowd(kind, log), durable=True)
        self._channel.basic_consume(self._crowd("members", log), lambda *_: None)

    def _crowd(self, kind: str, log: str) -> str:
        return f"flyball.{kind}.{self._group}.{log}"

    def _count(self, kind: str, log: str) -> int:
        return int(self._channel.queue_declare(self._crowd(kind, log), durable=True).method.consumer_count)

    def _write(self, place: Place, position: int) -> None:
        name = queue_names(self._group, place)[1]
        self._channel.basic_publish("", name, str(position).encode(), _PERSISTENT)

    def _store_now(self) -> None:
        with self._lock:
            positions, self._positions = self._positions, {}
        for place, position in positions.items():
            each = self._logs.get(place[0])
            if each is not None and place[1] in each.owned:
                self._write(place, position)

    def _turn(self) -> None:
        with self._lock:
            new, self._new = self._new, {}
        for log, partitions in new.items():
            if log not in self._logs:
                self._join(log, partitions, {})
        for log, each in self._logs.items():
            self._balance(log, each)
        self._store_now()
        deadline = time.monotonic() + _TICK_S
        while time.monotonic() < deadline and not self._stopping.is_set():
            self._connection.process_data_events(0.05)

    def _balance(self, log: str, each: _Log) -> None:
        members = max(self._count("members", log), 1)
        least, most = each.partitions // members, -(-each.partitions // members)
        for number in range(each.partitions):
            if number not in each.owned and len(each.owned) < most:
                self._try(log, each, number)
        surplus = len(each.owned) - most
        if len(each.owned) > least and self._count("hungry", log) > 0:
            surplus = max(surplus, 1)
        for number in sorted(each.owned, reverse=True)[: max(surplus, 0)]:
            self._let_go(log, each, number)
        self._show_hunger(log, each, len(each.owned) < least)

    def _show_hunger(self, log: str, each: _Log, hungry: bool) -> None:
        if hungry and each.hungry is None:
            each.hungry = self._channel.basic_consume(self._crowd("hungry", log), lambda *_: None)
        elif not hungry and each.hungry is not None:
            self._channel.basic_cancel(each.hungry)
            each.hungry = None

    def _try(self, log: str, each: _Log, number: int) -> None:
        channel = self._connection.channel()
        lock = queue_names(self._group, (log, number))[0]
        try:
            channel.basic_consume(lock, lambda *_: None, exclusive=True)
        except ChannelClosed:
            return  # it has an owner
        each.owned[number] = channel
        position = peek_position(self._channel, self._group, (log, number), attempts=50)
        self._reader.gained((log, number), position or 0)

    def _let_go(self, log: str, each: _Log, number: int) -> None:
        position = self._reader.released((log, number))
        with self._lock:
            self._positions.pop((log, number), None)
        if position is not None:
            self._write((log, number), position)
            # Closing our lock's channel may overtake the write on the other one: wait for an answer there first.
            self._channel.queue_declare(queue_names(self._group, (log, number))[1], passive=True)
        each.owned.pop(number).close()
