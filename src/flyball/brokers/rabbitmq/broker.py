"""RabbitMQ's classic and quorum queues behind the port: `amqp://` and `amqps://`; `config` lists the options.

Senders and receivers have separate connections, because a broker that is short of memory stops reading from
connections that publish, acknowledgements included.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from flyball.brokers.core.broker import BaseBroker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.names import check_name, to_regex
from flyball.brokers.port import (
    BrokerError,
    Capabilities,
    ChannelInfo,
    NoSuchChannel,
    Receiver,
    Record,
    Sender,
    Start,
    Unsupported,
)
from flyball.brokers.url import BrokerUrl
from flyball.errors import require

require("pika", "rabbitmq")

from flyball.brokers.rabbitmq.admin import GroupQueue, RabbitAdmin, group_queue  # noqa: E402
from flyball.brokers.rabbitmq.config import RabbitSettings  # noqa: E402
from flyball.brokers.rabbitmq.connection import Link  # noqa: E402
from flyball.brokers.rabbitmq.receiver import RabbitReceiver  # noqa: E402
from flyball.brokers.rabbitmq.sender import RabbitSender  # noqa: E402


async def connect(url: BrokerUrl) -> RabbitMqBroker:
    broker = RabbitMqBroker(RabbitSettings.of(url))
    await broker.open()
    return broker


class RabbitMqBroker(BaseBroker[RabbitReceiver]):
    """See `port.Broker`."""

    def __init__(self, settings: RabbitSettings) -> None:
        super().__init__()
        self._settings = settings
        # A sender waits for a confirm and wants to know soon; a receiver loses its messages by a false alarm.
        self._sending = Link(settings, patience=1)
        self._receiving = Link(settings, patience=3)
        self._admin = RabbitAdmin(settings, self._receiving)
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
        return self._settings.max_body_bytes(self._receiving.server_version)

    async def sender(self, channel: str, *, producer: str | None = None) -> Sender:  # noqa: ARG002  for logs
        check_name(channel)
        sender = RabbitSender(
            self._sending,
            channel,
            bind=self._admin.bind_own_name,
            blocked_timeout_s=self._settings.blocked_timeout_s,
            max_body_bytes=self._max_body_bytes,
        )
        try:
            await sender.open()
        except BaseException:
            await sender.close()
            raise
        self._senders = [*(each for each in self._senders if not each.closed), sender]
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
        queue = await self._admin.declare_group(pattern, group)
        return await self._receiver(queue, window, pattern=True)

    async def declare_group_queue(self, queue: str) -> GroupQueue:
        """Make sure that a queue exists which one member of a group reads at a time."""
        return await self._admin.declare_group_queue(check_name(queue))

    async def group_receiver(
        self, queue: str, kind: GroupQueue, *, window: int = 100, priority: int | None = None
    ) -> RabbitReceiver:
        """The receiver of the member that reads the queue, or of one that waits with a lower `priority`."""
        return await self._receiver(queue, window, pattern=False, kind=kind, priority=priority)

    async def _receiver(
        self,
        queue: str,
        window: int,
        *,
        pattern: bool,
        kind: GroupQueue | None = None,
        priority: int | None = None,
    ) -> RabbitReceiver:
        receiver = RabbitReceiver(
            self._receiving,
            queue,
            window,
            pattern=pattern,
            display_url=self._settings.display_url,
            count_queue=self._admin.count_queue,
            ask_counting=partial(self._admin.delivery_counting, quorum=kind is not None and kind.quorum),
            finished=self._settings.finished_ids(),
            sole=kind is not None,
            exclusive=kind is not None and not kind.single_active,
            priority=priority,
        )
        try:
            await receiver.open()
        except BaseException:
            await receiver.close()  # else its consumer would keep messages for nobody
            raise
        return self._register_receiver(receiver)

    def _check_kind(self, spec: ChannelSpec) -> None:
        if spec.kind == "log":
            raise Unsupported(
                f"amqp:// has no logs, so {spec.name!r} cannot be one: use rabbitmq-stream:// or kafka://"
            )

    async def _declare(self, spec: ChannelSpec) -> None:
        await self._admin.declare(spec)

    async def delete(self, channel: str) -> None:
        await self._admin.delete(check_name(channel))

    async def purge(self, channel: str) -> int | None:
        return await self._admin.purge(channel)

    async def depth(self, channel: str, group: str | None = None) -> int:
        queue = channel if group is None else group_queue(channel, group)
        ready, _ = await self._admin.count_queue(queue)
        for receiver in self._receivers:  # what our receivers only parked is still waiting
            if receiver.queue == queue:
                ready += receiver.parked + (receiver.in_flight if group is not None else 0)
        return ready

    async def oldest_age_s(self, channel: str) -> float | None:
        await self._admin.count_queue(channel)
        return None  # RabbitMQ does not report ages

    async def channels(self) -> list[ChannelInfo]:
        channels = []
        for name in await self._admin.queue_names():
            try:
                channels.append(ChannelInfo(name, "queue", depth=await self.depth(name)))
            except NoSuchChannel:
                continue  # deleted meanwhile
            except BrokerError:
                channels.append(ChannelInfo(name, "queue"))
        return channels

    def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:  # noqa: ARG002
        raise _no_log(log)

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:  # noqa: ARG002
        raise _no_log(log)

    async def has_dead_letter_exchange(self, queue: str) -> bool | None:
        return await self._admin.has_dead_letter_exchange(queue)

    async def close(self) -> None:
        senders, self._senders = self._senders, []
        await asyncio.gather(self._close_receivers(), *(sender.close() for sender in senders))
        await asyncio.gather(self._sending.close(), self._receiving.close())


def _no_log(log: str) -> Unsupported:
    return Unsupported(f"{log!r} on amqp:// cannot be replayed: use rabbitmq-stream:// or kafka:// for logs")
