"""RabbitMQ's queues: one member reads each, as a single active consumer, or as an exclusive one.

On quorum queues since RabbitMQ 4 all members subscribe, owners with a priority above the others. The broker lets
one read at a time. When an owner has closed its subscription, or is gone, it goes on at once with the next: the
new owner, which has subscribed already, or if there is none any member, whether a coordinator is there or not.

An owner is not pushed aside by a higher priority, though the broker would then drain and switch by itself: if a
consumer ends while it is being drained, RabbitMQ 4.3.6 goes on to count it among those that wait, and later sends
messages to nobody.

Other queues are handed over in two phases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from flyball.brokers.port import Receiver
from flyball.brokers.rabbitmq.admin import GroupQueue
from flyball.brokers.rabbitmq.broker import RabbitMqBroker
from flyball.brokers.rabbitmq.policy import fixed_prefetch
from flyball.brokers.rabbitmq.receiver import RabbitReceiver
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import QueueLoad
from flyball.groups.readers.two_phase import OPEN_S, TwoPhaseReaders, queue_name

_OWNER, _STANDBY = 1, 0
"""Priorities. Those that are equal have their turns in the order in which they subscribed."""
_ATTACH_S = 0.5  # the new owner is given this time to subscribe; until then the old one reads on
_RENEW_S = 1.0


class RabbitReaders(TwoPhaseReaders):
    """See `port.QueueReaders`."""

    def __init__(self, broker: RabbitMqBroker, window: int = 100) -> None:
        super().__init__(broker, window)
        self._rabbitmq = broker
        self._kinds: dict[Queue, GroupQueue] = {}
        self._granted: set[Queue] = set()
        self._renewal: asyncio.Task[None] | None = None

    @property
    def switches(self) -> bool:
        return bool(self._kinds) and all(kind.by_priority for kind in self._kinds.values())

    async def _declare(self, queue: Queue) -> None:
        if queue not in self._kinds:
            self._kinds[queue] = await self._rabbitmq.declare_group_queue(queue_name(queue))

    async def _open(self, queue: Queue) -> Receiver:
        await self._declare(queue)
        return await self._rabbitmq.group_receiver(
            queue_name(queue),
            self._kinds[queue],
            window=max(1, self.receiver.window),
            priority=self._priority(queue),
        )

    def _priority(self, queue: Queue) -> int | None:
        """What this member's subscription to a queue should have."""
        if not self._kinds[queue].by_priority:
            return None
        return _OWNER if queue in self._granted else _STANDBY

    async def take(self, queue: Queue, generation: int) -> None:
        await self._declare(queue)
        if not self._kinds[queue].by_priority:
            await super().take(queue, generation)
            return
        self._granted.add(queue)
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew())
        self._begin_opening(queue)
        opening = self._openings.get(queue)
        if opening is not None:
            await asyncio.wait((opening,), timeout=OPEN_S)
            if opening.done() and not opening.cancelled():
                opening.result()

    async def stand_by(self) -> None:
        for queue in self._kinds:
            if queue not in self._releases:
                self._begin_opening(queue)

    def _begin_opening(self, queue: Queue) -> None:
        """Subscribe with the priority that this member should have, unless it has or is about to."""
        if not self._is_opening(queue) and not self._is_subscribed(queue):
            self._openings[queue] = asyncio.create_task(self._open_newest(queue))

    def _is_opening(self, queue: Queue) -> bool:
        opening = self._openings.get(queue)
        return opening is not None and not opening.done()

    def _is_subscribed(self, queue: Queue) -> bool:
        source = self.receiver.source(queue)
        return source is not None and _rabbit(source.receiver).priority == self._priority(queue)

    async def _open_newest(self, queue: Queue) -> None:
        """Subscribe with the priority that holds at the end, however often it changes meanwhile."""
        while True:
            await self._open_in_time(queue)
            if self._is_subscribed(queue):
                return

    async def pass_on(self, queue: Queue, deadline_s: float) -> bool:
        if not self._kinds[queue].by_priority:
            return await self.release(queue, deadline_s)
        await asyncio.sleep(_ATTACH_S)
        clean = await self.release(queue, deadline_s)
        self._begin_opening(queue)
        return clean

    async def release(self, queue: Queue, deadline_s: float) -> bool:
        self._granted.discard(queue)
        return await super().release(queue, deadline_s)

    async def _renew(self) -> None:
        """Subscribe again where the window has outgrown the prefetch, which a subscription has for life."""
        while True:
            await asyncio.sleep(_RENEW_S)
            for queue in list(self._granted):
                source = self.receiver.source(queue)
                if source is None or self._is_opening(queue) or queue in self._releases:
                    continue
                prefetch = _rabbit(source.receiver).fixed_prefetch
                if prefetch is not None and fixed_prefetch(self.receiver.window, prefetch) != prefetch:
                    self._openings[queue] = asyncio.create_task(self._open_newest(queue))

    def loads(self) -> Mapping[Queue, QueueLoad]:
        return self.receiver.loads([queue for queue in self.receiver.queues if self._is_mine(queue)])

    def _is_mine(self, queue: Queue) -> bool:
        """It was granted, or is being passed on; others are only subscribed to."""
        return queue in self._granted or queue in self._releases or not self._kinds[queue].by_priority

    async def depth(self) -> int:
        names = [queue_name(queue) for queue in self.receiver.queues if self._is_mine(queue)]
        return sum(await asyncio.gather(*(self._broker.depth(name) for name in names)))

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        await super().close()


def _rabbit(receiver: Receiver) -> RabbitReceiver:
    assert isinstance(receiver, RabbitReceiver)
    return receiver
