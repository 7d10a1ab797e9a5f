"""Queues as a whole: declaring, binding, deleting and counting them.

Every queue we declare is bound under its own name to the topic exchange `flyball`, where each group has a queue
of its own bound by its pattern; so one publish reaches the queue of that name and all groups. Queues of other
programs are bound the same way when a sender is opened to them; where that is not allowed, messages go to the
queue alone.

Such a queue may be deleted and declared again by its program, without our binding. So a marker is bound to it too:
an exchange that the broker deletes with its last binding, that is with the queue. While the marker is there, the
queue is the one that was bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pika.exceptions import AMQPError

from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import BrokerError, LoginRefused, NoSuchChannel, Unsupported
from flyball.brokers.rabbitmq.config import EXCHANGE, RabbitSettings
from flyball.brokers.rabbitmq.connection import Link, OpenChannel
from flyball.brokers.rabbitmq.errors import channel_error
from flyball.brokers.rabbitmq.management import Management
from flyball.brokers.rabbitmq.policy import DeliveryCounting, limits_by_default, switches_by_priority
from flyball.errors import InvalidValue

log = logging.getLogger("flyball.brokers")

_GROUP_PREFIX = "flyball-group:"
_MARKER_PREFIX = "flyball-queue:"


@dataclass(frozen=True, slots=True)
class Route:
    """Where a sender publishes. While the exchange `marker` is there, the queue gets it (None: not known)."""

    exchange: str
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A queue that one member of a group reads at a time.

    `single_active`: the broker sees to that, however many members subscribe. `by_priority`: of those that have
    subscribed the one with the highest priority reads; a new one gets its turn when all in flight is settled.
    """

    single_active: bool
    quorum: bool
    by_priority: bool = False


class RabbitAdmin:
    """One channel for questions and declarations; it is opened again when an error closed it."""

    def __init__(self, settings: RabbitSettings, link: Link) -> None:
        self._settings = settings
        self._link = link
        self._unmarked: set[str] = set()
        self._management = Management.of(settings.url) if "management" in settings.url.options else None
        self._channel: OpenChannel | None = None
        self._lock = asyncio.Lock()

    async def declare(self, spec: ChannelSpec) -> None:
        queue = spec.name
        limits: dict[str, Any] = {}
        if spec.max_bytes is not None:
            limits = {"x-max-length-bytes": spec.max_bytes, "x-overflow": "reject-publish"}
        try:
            await self._declare_and_bind(queue, queue, durable=spec.durable, arguments=limits)
        except InvalidValue:
            # It exists with other settings, which is fine unless this declaration asks for particular ones.
            if self._settings.queue_type is not None or spec.max_bytes is not None or not spec.durable:
                raise
            await self.bind_own_name(queue)

    async def declare_group_queue(self, queue: str) -> GroupQueue:
        """Declare a queue with a single active consumer; since RabbitMQ 4 a quorum queue unless the URL differs.

        One that exists without a single active consumer is used as it is.
        """
        new_server = limits_by_default(self._link.server_version)
        first = self._settings.queue_type or ("quorum" if new_server else None)
        kinds = [first] if self._settings.queue_type else dict.fromkeys((first, "quorum", "classic"))
        for kind in kinds:
            try:
                await self._declare_and_bind(
                    queue, queue, durable=True, arguments={"x-single-active-consumer": True}, queue_type=kind
                )
            except InvalidValue:
                continue  # it exists with other arguments
            return self._group_queue(single_active=True, quorum=kind == "quorum")
        await self.bind_own_name(queue)
        single_active, quorum = await self._ask_single_active(queue)
        if not single_active:
            log.warning(
                "queue %s has no single active consumer, so that the broker lets one member exclude the others "
                "instead of waiting for its turn: delete it when it is empty, and it is declared anew",
                queue,
            )
        return self._group_queue(single_active, quorum)

    def _group_queue(self, single_active: bool, quorum: bool) -> GroupQueue:
        by_priority = single_active and quorum and switches_by_priority(self._link.server_version)
        return GroupQueue(single_active, quorum, by_priority)

    async def _ask_single_active(self, queue: str) -> tuple[bool, bool]:
        """Whether a queue of other arguments has a single active consumer, and whether it is a quorum queue."""
        if self._management is None:
            return False, self._settings.queue_type == "quorum"
        try:
            return await asyncio.to_thread(self._management.single_active, self._settings.vhost, queue)
        except BrokerError as error:
            log.warning("cannot find out whether the queue %s has a single active consumer: %s", queue, error)
            return False, self._settings.queue_type == "quorum"

    async def declare_group(self, pattern: str, group: str) -> str:
        """Declare the queue of a consumer group and bind it by its pattern; returns the queue's name."""
        queue = group_queue(pattern, group)
        if len(queue) > 255:
            raise InvalidValue(
                f"pattern {pattern[:40]!r} and group {group[:40]!r} are too long together: shorten one"
            )
        await self._declare_and_bind(queue, pattern, durable=True, arguments={})
        return queue

    async def _declare_and_bind(
        self,
        queue: str,
        routing_key: str,
        *,
        durable: bool,
        arguments: Mapping[str, Any],
        queue_type: str | None = None,
    ) -> None:
        queue_type = queue_type or self._settings.queue_type

        async def declare(channel: OpenChannel, *, unlimited: bool) -> None:
            given = {**self._queue_arguments(queue_type, unlimited=unlimited), **arguments}
            await _declare_exchange(channel)
            await channel.call(channel.raw.queue_declare, queue, durable=durable, arguments=given or None)
            await channel.call(channel.raw.queue_bind, queue, EXCHANGE, routing_key=routing_key)

        try:
            await self._run(routing_key, partial(declare, unlimited=True))
        except InvalidValue:
            if self._queue_arguments(queue_type, unlimited=True) == self._queue_arguments(
                queue_type, unlimited=False
            ):
                raise
            # It may exist with the server's own limit, as another program declared it.
            await self._run(routing_key, partial(declare, unlimited=False))

    def _queue_arguments(self, queue_type: str | None, *, unlimited: bool) -> dict[str, Any]:
        """The arguments of a declaration. `unlimited`: a quorum queue drops nothing that was returned often.

        Servers before version 4 have no limit unless they are asked for one, and cannot be asked for none.
        """
        settings = self._settings
        arguments: dict[str, Any] = {} if queue_type is None else {"x-queue-type": queue_type}
        if settings.delivery_limit is not None:
            arguments["x-delivery-limit"] = settings.delivery_limit
        elif unlimited and queue_type == "quorum" and limits_by_default(self._link.server_version):
            arguments["x-delivery-limit"] = -1
        return arguments

    async def bind_own_name(self, queue: str) -> Route | None:
        """Bind a queue to our exchange under its own name.

        Returns where to publish: to our exchange, or to the default one ("") where we may not bind the queue; None
        if there is no such queue.
        """

        async def bind(channel: OpenChannel) -> None:
            await _declare_exchange(channel)
            await channel.call(channel.raw.queue_bind, queue, EXCHANGE, routing_key=queue)

        try:
            await self._run(queue, bind)
        except NoSuchChannel:
            return None
        except (LoginRefused, InvalidValue):
            return Route("")  # the default exchange leads to the queue alone
        return Route(EXCHANGE, await self._mark(queue, bind))

    async def _mark(self, queue: str, bind: Callable[[OpenChannel], Awaitable[None]]) -> str | None:
        """Bind the marker of a queue, and then the queue once more: it may have been declared again meanwhile."""
        if queue in self._unmarked:
            return None
        marker = _MARKER_PREFIX + queue

        async def mark(channel: OpenChannel) -> None:
            raw = channel.raw
            await channel.call(raw.exchange_declare, marker, "fanout", durable=True, auto_delete=True)
            await channel.call(raw.queue_bind, queue, marker)
            await bind(channel)

        try:
            await self._run(queue, mark)
        except (NoSuchChannel, LoginRefused, InvalidValue) as error:
            if isinstance(error, LoginRefused):
                self._unmarked.add(queue)  # the server logs each refusal: do not ask again
            # The queue is gone, or markers are not allowed. One without a binding would stay for ever.
            with suppress(BrokerError, InvalidValue):
                await self._run(
                    queue, lambda channel: channel.call(channel.raw.exchange_delete, marker, if_unused=True)
                )
            return None
        return marker

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

    async def has_dead_letter_exchange(self, queue: str) -> bool | None:
        """By the queue's arguments or its policy, which only the management plugin reports."""
        if self._management is None:
            return None
        try:
            return await asyncio.to_thread(self._management.has_dead_letter_exchange, self._settings.vhost, queue)
        except BrokerError as error:
            log.warning("cannot find out whether the queue %s has a dead-letter exchange: %s", queue, error)
            return None

    async def delivery_counting(self, queue: str, *, quorum: bool = False) -> DeliveryCounting:
        """How a queue counts deliveries, according to the management plugin, or else to the URL or `quorum`."""
        if self._management is not None:
            try:
                return await asyncio.to_thread(
                    self._management.counting, self._settings.vhost, queue, version=self._link.server_version
                )
            except BrokerError as error:
                log.warning("cannot find out how the queue %s counts deliveries: %s", queue, error)
        counts = quorum or self._settings.queue_type == "quorum"
        return DeliveryCounting(counts, limit=self._settings.delivery_limit)

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
