"""Queues as a whole: declaring, binding, deleting and counting them.

Every queue we declare is bound under its own name to the topic exchange `flyball`, where each group has a queue
of its own bound by its pattern; so one publish reaches the queue of that name and all groups. Queues of other
programs are bound the same way when a sender is opened to them; where that is not allowed, messages go to the
queue alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pika.exceptions import AMQPError

from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import BrokerError, LoginRefused, NoSuchChannel, Unsupported
from flyball.brokers.rabbitmq.config import EXCHANGE, RabbitSettings
from flyball.brokers.rabbitmq.connection import Link, OpenChannel
from flyball.brokers.rabbitmq.errors import channel_error
from flyball.brokers.rabbitmq.management import Management
from flyball.brokers.rabbitmq.policy import DeliveryCounting
from flyball.errors import InvalidValue

log = logging.getLogger("flyball.brokers")

_GROUP_PREFIX = "flyball-group:"


class RabbitAdmin:
    """One channel for questions and declarations; it is opened again when an error closed it."""

    def __init__(self, settings: RabbitSettings, link: Link) -> None:
        self._settings = settings
        self._link = link
        self._management = Management.of(settings.url) if "management" in settings.url.options else None
        self._channel: OpenChannel | None = None
        self._lock = asyncio.Lock()

    async def declare(self, spec: ChannelSpec) -> None:
        queue = spec.name
        arguments = self._queue_arguments()
        if spec.max_bytes is not None:
            arguments |= {"x-max-length-bytes": spec.max_bytes, "x-overflow": "reject-publish"}

        async def declare_and_bind(channel: OpenChannel) -> None:
            await _declare_exchange(channel)
            await channel.call(channel.raw.queue_declare, queue, durable=spec.durable, arguments=arguments or None)
            await channel.call(channel.raw.queue_bind, queue, EXCHANGE, routing_key=queue)

        try:
            await self._run(queue, declare_and_bind)
        except InvalidValue:
            # It exists with other settings, which is fine unless this declaration asks for particular ones.
            if self._settings.queue_type is not None or spec.max_bytes is not None or not spec.durable:
                raise
            await self.bind_own_name(queue)

    async def declare_group(self, pattern: str, group: str) -> str:
        """Declare the queue of a consumer group and bind it by its pattern; returns the queue's name."""
        queue = group_queue(pattern, group)
        if len(queue) > 255:
            raise InvalidValue(
                f"pattern {pattern[:40]!r} and group {group[:40]!r} are too long together: shorten one"
            )

        async def declare_and_bind(channel: OpenChannel) -> None:
            await _declare_exchange(channel)
            await channel.call(
                channel.raw.queue_declare, queue, durable=True, arguments=self._queue_arguments() or None
            )
            await channel.call(channel.raw.queue_bind, queue, EXCHANGE, routing_key=pattern)

        await self._run(pattern, declare_and_bind)
        return queue

    def _queue_arguments(self) -> dict[str, Any]:
        settings = self._settings
        arguments: dict[str, Any] = {} if settings.queue_type is None else {"x-queue-type": settings.queue_type}
        if settings.delivery_limit is not None:
            arguments["x-delivery-limit"] = settings.delivery_limit
        return arguments

    async def bind_own_name(self, queue: str) -> str | None:
        """Bind a queue to our exchange under its own name.

        Returns the exchange to publish to: ours, or the default one ("") where we may not bind the queue; None if
        there is no such queue.
        """

        async def bind(channel: OpenChannel) -> None:
            await _declare_exchange(channel)
            await channel.call(channel.raw.queue_bind, queue, EXCHANGE, routing_key=queue)

        try:
            await self._run(queue, bind)
        except NoSuchChannel:
            return None
        except (LoginRefused, InvalidValue):
            return ""  # the default exchange leads to the queue alone
        return EXCHANGE

    async def delete(self, queue: str) -> None:
        await self._run(queue, lambda channel: channel.call(channel.raw.queue_delete, queue))

    async def purge(self, queue: str) -> int:
        answer = await self._run(queue, lambda channel: channel.call(channel.raw.queue_purge, queue))
        return int(answer.message_count)

    async def count_queue(self, queue: str) -> tuple[int, int]:
        """(messages ready, consumers), as the broker counts them now."""
        answer = await self._run(
            queue, lambda channel: channel.call(channel.raw.queue_declare, queue, passive=True)
        )
        return int(answer.message_count), int(answer.consumer_count)

    async def queue_names(self) -> list[str]:
        """All queues except those of groups."""
        if self._management is None:
            raise Unsupported(
                "AMQP cannot list queues: add the management plugin's port to the URL, as in "
                f"{self._settings.url.scheme}://host/?management=15672"
            )
        names = await asyncio.to_thread(self._management.queues, self._settings.vhost)
        return [name for name in names if not name.startswith(_GROUP_PREFIX)]

    async def delivery_counting(self, queue: str) -> DeliveryCounting:
        """How a queue counts deliveries, according to the management plugin, or else to the URL."""
        if self._management is not None:
            try:
                return await asyncio.to_thread(
                    self._management.counting, self._settings.vhost, queue, version=self._link.server_version
                )
            except BrokerError as error:
                log.warning("cannot find out how the queue %s counts deliveries: %s", queue, error)
        return DeliveryCounting(counts=self._settings.queue_type == "quorum", limit=self._settings.delivery_limit)

    async def _run(self, queue: str, action: Callable[[OpenChannel], Any]) -> Any:
        """Run an action on a channel of its own: an AMQP error closes the channel it happens on."""
        async with self._lock:
            await self._link.open()
            if self._channel is None or not self._channel.is_open:
                self._channel = await self._link.channel()
            self._link.pending_answers += 1
            try:
                return await action(self._channel)
            except (AMQPError, TimeoutError) as error:
                raise channel_error(error, queue, self._settings.display_url) from None
            finally:
                self._link.pending_answers -= 1


async def _declare_exchange(channel: OpenChannel) -> None:
    await channel.call(channel.raw.exchange_declare, EXCHANGE, "topic", durable=True)


def group_queue(pattern: str, group: str) -> str:
    return f"{_GROUP_PREFIX}{group}:{pattern}"
