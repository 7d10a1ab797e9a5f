"""RabbitMQ's classic and quorum queues: `amqp://` and `amqps://`.

    amqp://user:password@host:5672/vhost?queue_type=quorum&management=15672

Every queue we declare is bound under its own name to the topic exchange `flyball`, where each group has a queue
of its own bound by its pattern; so one publish reaches the queue of that name and all groups. Queues of other
programs are bound the same way when a sender is opened to them; where that is not allowed, messages go to the
queue alone. Senders and receivers have separate connections, because a broker that is short of memory stops
reading from whoever publishes, acknowledgements included.

Options: queue_type (classic, quorum), delivery_limit (of the quorum queues that are declared), management (port or
URL of the management plugin: what `channels` needs, and what tells the delivery limits of other queues),
dedup_ids and dedup_s (horizon within which a receiver drops repeats of what it acknowledged; 0 ids: off),
blocked_timeout_s, max_body_bytes, silence_s (how fast a frozen broker is noticed), reconnect_s, heartbeat_s,
ca_file, cert_file, key_file (TLS).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from flyball.brokers.core.broker import BaseBroker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.dedup import MAX_AGE_S, MAX_IDS, FinishedIds
from flyball.brokers.core.names import check_name, to_regex
from flyball.brokers.port import (
    BrokerError,
    Capabilities,
    ChannelInfo,
    LoginRefused,
    NoSuchChannel,
    Receiver,
    Record,
    Sender,
    Start,
    Unsupported,
)
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue, require

require("pika", "rabbitmq")

from pika.exceptions import AMQPError  # noqa: E402

from flyball.brokers.rabbitmq.connection import Link, OpenChannel, Settings, channel_error  # noqa: E402
from flyball.brokers.rabbitmq.management import Counting, Management  # noqa: E402
from flyball.brokers.rabbitmq.receiver import RabbitReceiver  # noqa: E402
from flyball.brokers.rabbitmq.sender import EXCHANGE, RabbitSender  # noqa: E402

log = logging.getLogger("flyball.brokers")

_OPTIONS = (
    "queue_type",
    "delivery_limit",
    "management",
    "dedup_ids",
    "dedup_s",
    "blocked_timeout_s",
    "max_body_bytes",
    "silence_s",
    "reconnect_s",
    "heartbeat_s",
    "ca_file",
    "cert_file",
    "key_file",
)
_GROUP_PREFIX = "flyball-group:"


async def connect(url: BrokerUrl) -> RabbitMqBroker:
    url.check_options(*_OPTIONS)
    if url.options.get("queue_type", "classic") not in ("classic", "quorum"):
        raise InvalidValue(f"queue_type in {url} has to be classic or quorum, not {url.options['queue_type']!r}")
    broker = RabbitMqBroker(url)
    await broker.open()
    return broker


class RabbitMqBroker(BaseBroker[RabbitReceiver]):
    """See `port.Broker`."""

    def __init__(self, url: BrokerUrl) -> None:
        super().__init__()
        self._url = url
        self._settings = Settings.of(url)
        self._queue_type = url.options.get("queue_type")
        self._delivery_limit = _delivery_limit(url)
        self._blocked_timeout_s = url.number("blocked_timeout_s", 30.0)
        self._dedup = (url.integer("dedup_ids", MAX_IDS), url.number("dedup_s", MAX_AGE_S))
        FinishedIds(*self._dedup)  # a bad horizon is refused now, not with the first receiver
        self._management = Management.of(url) if "management" in url.options else None
        # A sender waits for a confirm and wants to know soon; a receiver loses its messages by a false alarm.
        self._sending = Link(self._settings, patience=1)
        self._receiving = Link(self._settings, patience=3)
        self._admin: OpenChannel | None = None
        self._admin_lock = asyncio.Lock()
        self._senders: list[RabbitSender] = []

    async def open(self) -> None:
        await self._receiving.open(retry=False)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            queues=True,
            logs=False,
            durable=True,
            dedup=False,
            shared_between_processes=True,
            max_body_bytes=self._max_body_bytes,
        )

    @property
    def _max_body_bytes(self) -> int:
        # RabbitMQ's own default limit: 128 MiB, since version 4 16 MiB.
        major = self._receiving.server_version.partition(".")[0]
        return self._url.integer("max_body_bytes", (16 if major.isdecimal() and int(major) >= 4 else 128) << 20)

    async def sender(self, channel: str, *, producer: str | None = None) -> Sender:  # noqa: ARG002  for logs
        check_name(channel)
        sender = RabbitSender(
            self._sending,
            channel,
            bind=self._bind_own_name,
            blocked_timeout_s=self._blocked_timeout_s,
            max_body_bytes=self._max_body_bytes,
        )
        self._senders.append(sender)
        await sender.open()
        return sender

    async def receiver(self, queue: str, *, window: int = 100) -> Receiver:
        return await self._receiver(queue, window, pattern=False)

    async def subscribe(
        self,
        pattern: str,
        group: str,
        *,
        window: int = 100,
        start: Start = "latest",  # noqa: ARG002  a queue has no past
    ) -> Receiver:
        to_regex(pattern)
        check_name(group)
        queue = _group_queue(pattern, group)
        if len(queue) > 255:
            raise InvalidValue(
                f"pattern {pattern[:40]!r} and group {group[:40]!r} are too long together: shorten one"
            )

        async def join(channel: OpenChannel) -> None:
            await self._declare_exchange(channel)
            await channel.call(channel.raw.queue_declare, queue, durable=True, arguments=self._arguments() or None)
            await channel.call(channel.raw.queue_bind, queue, EXCHANGE, routing_key=pattern)

        await self._administer(pattern, join)
        return await self._receiver(queue, window, pattern=True)

    async def _receiver(self, queue: str, window: int, *, pattern: bool) -> Receiver:
        receiver = RabbitReceiver(
            self._receiving,
            queue,
            window,
            pattern=pattern,
            shown=str(self._url),
            look=self._look,
            counting=self._counting,
            finished=FinishedIds(*self._dedup) if self._dedup[0] else None,
        )
        await receiver.open()
        return self._opened(receiver)

    # --- administration ---------------------------------------------------------------------------------------

    def _check_kind(self, spec: ChannelSpec) -> None:
        if spec.kind == "log":
            raise Unsupported(
                f"amqp:// has no logs, so {spec.name!r} cannot be one: use rabbitmq-stream:// or kafka://"
            )

    async def _declare(self, spec: ChannelSpec) -> None:
        channel = spec.name
        arguments = self._arguments()
        if spec.max_bytes is not None:
            arguments |= {"x-max-length-bytes": spec.max_bytes, "x-overflow": "reject-publish"}

        async def make(on: OpenChannel) -> None:
            await self._declare_exchange(on)
            await on.call(on.raw.queue_declare, channel, durable=spec.durable, arguments=arguments or None)
            await on.call(on.raw.queue_bind, channel, EXCHANGE, routing_key=channel)

        try:
            await self._administer(channel, make)
        except InvalidValue:
            # It exists with other settings. Whoever asked for none in particular has what was asked for.
            if self._queue_type is not None or spec.max_bytes is not None or not spec.durable:
                raise
            await self._bind_own_name(channel)

    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {} if self._queue_type is None else {"x-queue-type": self._queue_type}
        if self._delivery_limit is not None:
            arguments["x-delivery-limit"] = self._delivery_limit
        return arguments

    async def delete(self, channel: str) -> None:
        check_name(channel)
        await self._administer(channel, lambda on: on.call(on.raw.queue_delete, channel))

    async def purge(self, channel: str) -> int | None:
        answer = await self._administer(channel, lambda on: on.call(on.raw.queue_purge, channel))
        return int(answer.message_count)

    async def depth(self, channel: str, group: str | None = None) -> int:
        queue = channel if group is None else _group_queue(channel, group)
        ready, _ = await self._look(queue)
        for receiver in self._receivers:  # what our receivers only parked is still waiting
            if receiver.queue == queue:
                ready += receiver.parked + (receiver.in_flight if group is not None else 0)
        return ready

    async def oldest_age_s(self, channel: str) -> float | None:
        await self._look(channel)
        return None  # RabbitMQ tells no age

    async def channels(self) -> list[ChannelInfo]:
        if self._management is None:
            raise Unsupported(
                f"AMQP cannot list queues: add the management plugin's port to the URL, as in {self._url.scheme}://"
                "host/?management=15672"
            )
        names = await asyncio.to_thread(self._management.queues, self._settings.parameters.virtual_host)
        listed = []
        for name in names:
            if name.startswith(_GROUP_PREFIX):
                continue
            try:
                listed.append(ChannelInfo(name, "queue", depth=await self.depth(name)))
            except NoSuchChannel:
                continue  # deleted meanwhile
            except BrokerError:
                listed.append(ChannelInfo(name, "queue"))
        return listed

    async def _look(self, queue: str) -> tuple[int, int]:
        """(messages ready, consumers), fresh."""
        answer = await self._administer(queue, lambda on: on.call(on.raw.queue_declare, queue, passive=True))
        return int(answer.message_count), int(answer.consumer_count)

    async def _counting(self, queue: str) -> Counting:
        """How a queue counts deliveries: as the management plugin tells, else as the URL says."""
        if self._management is not None:
            vhost = self._settings.parameters.virtual_host
            try:
                return await asyncio.to_thread(
                    self._management.counting, vhost, queue, version=self._receiving.server_version
                )
            except BrokerError as error:
                log.warning("how the queue %s counts deliveries is not known: %s", queue, error)
        return Counting(counts=self._queue_type == "quorum", limit=self._delivery_limit)

    async def _bind_own_name(self, channel: str) -> str | None:
        """Bind a queue to our exchange under its own name; where to publish then, None if there is no queue."""

        async def bind(on: OpenChannel) -> None:
            await self._declare_exchange(on)
            await on.call(on.raw.queue_bind, channel, EXCHANGE, routing_key=channel)

        try:
            await self._administer(channel, bind)
        except NoSuchChannel:
            return None
        except (LoginRefused, InvalidValue):
            return ""  # not ours to bind: the default exchange leads to the queue alone
        return EXCHANGE

    async def _declare_exchange(self, on: OpenChannel) -> None:
        await on.call(on.raw.exchange_declare, EXCHANGE, "topic", durable=True)

    async def _administer(self, channel: str, action: Callable[[OpenChannel], Any]) -> Any:
        """Run an action on a channel of its own: an AMQP error closes the channel it happens on."""
        async with self._admin_lock:
            await self._receiving.open()
            if self._admin is None or not self._admin.is_open:
                self._admin = await self._receiving.channel()
            self._receiving.waiting += 1
            try:
                return await action(self._admin)
            except (AMQPError, TimeoutError) as error:
                raise channel_error(error, channel, str(self._url)) from None
            finally:
                self._receiving.waiting -= 1

    # --- what only logs have ----------------------------------------------------------------------------------

    def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:  # noqa: ARG002
        raise self._no_log(log)

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:  # noqa: ARG002
        raise self._no_log(log)

    def _no_log(self, log: str) -> Unsupported:
        return Unsupported(f"{log!r} on amqp:// cannot be replayed: use rabbitmq-stream:// or kafka:// for logs")

    async def close(self) -> None:
        await self._close_receivers()
        for sender in self._senders:
            await sender.close()
        self._senders.clear()
        await self._sending.close()
        await self._receiving.close()


def _delivery_limit(url: BrokerUrl) -> int | None:
    if "delivery_limit" not in url.options:
        return None
    limit = url.integer("delivery_limit", 0)
    if limit < 1 or url.options.get("queue_type") != "quorum":
        raise InvalidValue(
            f"delivery_limit={limit} in {url} has to be 1 or more and goes with queue_type=quorum: no other queue "
            "counts deliveries"
        )
    return limit


def _group_queue(pattern: str, group: str) -> str:
    return f"{_GROUP_PREFIX}{group}:{pattern}"
