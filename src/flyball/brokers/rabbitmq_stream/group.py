"""Which member of a group reads which partition, and its position: kept in small AMQP queues beside the streams.

RabbitMQ 3.10 has no groups on streams, and its own offset tracking puts entries into the stream. So, for each
(log, group, partition):

* the **lock** queue has at most one, exclusive, consumer: the partition's owner. The server frees it the moment
  the owner's connection ends, whatever the reason;
* the **position** queue holds one persistent message, the next offset to read (`x-max-length` 1: a newer one
  pushes the older out).

and for each (log, group) two queues of which only the number of consumers matters: **members**, and **hungry**,
which a member consumes while it owns less than its fair share; a member that owns more then releases a partition.

All of it runs on a thread of its own with a blocking connection, which notifies the receiver on the event loop.
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
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, ChannelClosed, ProbableAuthenticationError

from flyball.backoff import ENDLESS, ReconnectDelay, delays_s
from flyball.brokers.core import pika_logs
from flyball.brokers.core.positions import Partition
from flyball.brokers.port import BrokerError, LoginRefused, Unreachable
from flyball.brokers.rabbitmq_stream.connection import LOGIN_S, StreamSettings

pika_logs.install()

logger = logging.getLogger(__name__)  # `log` is a log of messages here

_TICK_S = 0.25
_MEMBERS, _SHORTAGE = "members", "hungry"  # in the names of queues at the broker
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Reader(Protocol):
    """What the thread notifies; every call may come from that thread."""

    def on_gain(self, partition: Partition, position: int) -> None:
        """Read this partition from that offset on: it is ours now."""

    def on_release(self, partition: Partition) -> int | None:
        """Stop reading it. Returns the position to store, once nothing more of it is handed out."""

    def on_loss(self) -> None:
        """The connection broke, and with it every partition is lost."""


def queue_names(group: str, partition: Partition) -> tuple[str, str]:
    log, number = partition
    return f"flyball.lock.{group}.{log}-{number}", f"flyball.position.{group}.{log}-{number}"


def open_amqp(settings: StreamSettings) -> pika.BlockingConnection:
    url = settings.url
    options = None if settings.tls is None else pika.SSLOptions(settings.tls, settings.host)
    try:
        with pika_logs.log_as_details():
            return pika.BlockingConnection(
                pika.ConnectionParameters(
                    host=settings.host,
                    port=settings.amqp_port,
                    virtual_host=settings.vhost,
                    credentials=pika.PlainCredentials(url.user or "guest", url.password or "guest"),
                    heartbeat=10,
                    blocked_connection_timeout=10,
                    socket_timeout=LOGIN_S,
                    stack_timeout=LOGIN_S,
                    ssl_options=options,
                )
            )
    except ProbableAuthenticationError:
        raise LoginRefused(f"{url} refused the login over AMQP: check user and password") from None
    # pika: AMQPConnectorException if the login takes too long, ValueError if it is reset while it is being made
    except (AMQPError, AMQPConnectorException, OSError, ValueError):
        raise Unreachable(
            f"no AMQP server answers at {settings.host}:{settings.amqp_port}, where groups of {url} keep their "
            "state: set its option amqp_port"
        ) from None


def peek_position(channel: Any, group: str, partition: Partition, attempts: int = 3) -> int | None:
    """The stored position; the message stays. Another process may be reading it just now, so try again."""
    name = queue_names(group, partition)[1]
    for attempt in range(attempts):
        frame, _, body = channel.basic_get(name)
        if frame is not None:
            channel.basic_nack(frame.delivery_tag, requeue=True)
            return int(body) if body.isdigit() else None
        if attempt < attempts - 1:
            time.sleep(0.015)
    return None


@dataclass(slots=True)
class _Log:
    partitions: int
    owned: dict[int, Any] = field(default_factory=dict)
    """Partition → the channel whose consumer has the lock."""
    shortage_tag: str | None = None


class GroupMembership:
    """One member of a group."""

    def __init__(self, settings: StreamSettings, group: str, reader: Reader) -> None:
        self._settings = settings
        self._group = group
        self._reader = reader
        self._logs: dict[str, _Log] = {}
        self._new: dict[str, int] = {}
        self._positions: dict[Partition, int] = {}
        self._lock = threading.Lock()
        self._connection: Any = None
        self._channel: Any = None
        self._stopping = threading.Event()
        self._lock_deleted = False
        self._reconnect_delay = ReconnectDelay()
        self._thread = threading.Thread(target=self._run, name="flyball-stream-group", daemon=True)

    def start(self, logs: Mapping[str, int], starts: Mapping[Partition, int]) -> None:
        """Connect, fix where the group begins in partitions it does not know yet, and join the group. Blocks."""
        self._connect()
        try:
            for log, partitions in logs.items():
                self._join(log, partitions, starts)
        except BaseException:
            with suppress(AMQPError, OSError):
                self._connection.close()
            raise
        self._thread.start()

    def add(self, log: str, partitions: int) -> None:
        """A log that appeared later: the group reads it from its beginning."""
        with self._lock:
            self._new[log] = partitions

    def store(self, positions: Mapping[Partition, int], written: Callable[[], object]) -> None:
        """Write positions, the newest of each partition; our thread calls `written` when they are sent."""

        def write() -> None:
            try:
                self._store_now()
            finally:
                written()

        with self._lock:
            self._positions.update(positions)
        try:
            self._connection.add_callback_threadsafe(write)
        except (AMQPError, OSError):  # the connection is lost, and the partitions with it
            written()

    def stop(self, positions: Mapping[Partition, int]) -> None:
        """Store the positions and leave the group. Blocks for a moment."""
        with self._lock:
            self._positions.update(positions)
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(15)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception as error:  # a fault of the client library must not end this thread either
                if not isinstance(error, AMQPError | OSError):
                    logger.exception("group %s: its connection failed in an unexpected way", self._group)
                self._reader.on_loss()
                for each in self._logs.values():
                    each.owned.clear()
                with self._lock:
                    self._positions.clear()  # they are those of partitions that are no longer ours
                self._reconnect()
        with suppress(AMQPError, OSError):
            self._store_now()
            self._connection.close()

    def _reconnect(self) -> None:
        if self._connection.is_open:  # it failed in another way: the server would keep its locks
            with suppress(AMQPError, OSError):
                self._connection.close()
        self._reconnect_delay.lost(time.monotonic())
        if self._stopping.wait(self._reconnect_delay.remaining_s(time.monotonic())):
            return
        for delay_s in delays_s(ENDLESS, longest_s=2.0):
            if self._stopping.wait(delay_s):
                return
            try:
                self._connect()
                for log, each in self._logs.items():
                    each.shortage_tag = None
                    self._declare_queues(log, each.partitions)  # who deletes a log deletes them, too
                    self._announce(log)
            except (BrokerError, AMQPError, OSError):
                continue
            except Exception:  # it must not end this thread either
                logger.exception("group %s: connecting again failed in an unexpected way", self._group)
                continue
            return

    def _connect(self) -> None:
        self._connection = open_amqp(self._settings)
        self._channel = self._connection.channel()
        self._lock_deleted = False
        self._reconnect_delay.opened(time.monotonic())

    def _join(self, log: str, partitions: int, starts: Mapping[Partition, int]) -> None:
        self._logs[log] = _Log(partitions)
        self._declare_queues(log, partitions)
        for number in range(partitions):
            partition = (log, number)
            if peek_position(self._channel, self._group, partition) is None:
                self._write(partition, starts.get(partition, 0))
        self._announce(log)

    def _declare_queues(self, log: str, partitions: int) -> None:
        for number in range(partitions):
            lock, position = queue_names(self._group, (log, number))
            self._channel.queue_declare(lock, durable=True)
            self._channel.queue_declare(position, durable=True, arguments={"x-max-length": 1})

    def _announce(self, log: str) -> None:
        for kind in (_MEMBERS, _SHORTAGE):
            self._channel.queue_declare(self._counter_queue(kind, log), durable=True)
        self._channel.basic_consume(self._counter_queue(_MEMBERS, log), lambda *_: None)

    def _counter_queue(self, kind: str, log: str) -> str:
        return f"flyball.{kind}.{self._group}.{log}"

    def _count(self, kind: str, log: str) -> int:
        return int(self._channel.queue_declare(self._counter_queue(kind, log), durable=True).method.consumer_count)

    def _write(self, partition: Partition, position: int) -> None:
        name = queue_names(self._group, partition)[1]
        self._channel.basic_publish("", name, str(position).encode(), _PERSISTENT)

    def _store_now(self) -> None:
        with self._lock:
            positions, self._positions = self._positions, {}
        for partition, position in positions.items():
            each = self._logs.get(partition[0])
            if each is not None and partition[1] in each.owned:
                self._write(partition, position)

    def _run_once(self) -> None:
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
            if self._lock_deleted:
                raise ConnectionError("a lock of this group was deleted, and so was its log")

    def _balance(self, log: str, each: _Log) -> None:
        members = max(self._count(_MEMBERS, log), 1)
        least, most = each.partitions // members, -(-each.partitions // members)
        for number in range(each.partitions):
            if number not in each.owned and len(each.owned) < most:
                self._try_lock(log, each, number)
        surplus = len(each.owned) - most
        if len(each.owned) > least and self._count(_SHORTAGE, log) > 0:
            surplus = max(surplus, 1)
        for number in sorted(each.owned, reverse=True)[: max(surplus, 0)]:
            self._release_partition(log, each, number)
        self._signal_shortage(log, each, len(each.owned) < least)

    def _signal_shortage(self, log: str, each: _Log, short: bool) -> None:
        if short and each.shortage_tag is None:
            each.shortage_tag = self._channel.basic_consume(self._counter_queue(_SHORTAGE, log), lambda *_: None)
        elif not short and each.shortage_tag is not None:
            self._channel.basic_cancel(each.shortage_tag)
            each.shortage_tag = None

    def _try_lock(self, log: str, each: _Log, number: int) -> None:
        channel = self._connection.channel()
        channel.add_on_cancel_callback(self._on_lock_deleted)
        lock = queue_names(self._group, (log, number))[0]
        try:
            channel.basic_consume(lock, lambda *_: None, exclusive=True)
        except ChannelClosed:
            return  # it has an owner
        each.owned[number] = channel
        position = peek_position(self._channel, self._group, (log, number), attempts=50)
        self._reader.on_gain((log, number), position or 0)

    def _on_lock_deleted(self, _: object) -> None:
        """Every partition is locked anew: the next log of this name begins at its first message."""
        self._lock_deleted = True

    def _release_partition(self, log: str, each: _Log, number: int) -> None:
        position = self._reader.on_release((log, number))
        with self._lock:
            self._positions.pop((log, number), None)
        if position is not None:
            self._write((log, number), position)
            # Closing our lock's channel may overtake the write on the other one: wait for an answer there first.
            self._channel.queue_declare(queue_names(self._group, (log, number))[1], passive=True)
        each.owned.pop(number).close()
