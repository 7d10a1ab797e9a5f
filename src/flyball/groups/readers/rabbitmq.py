"""RabbitMQ's queues: read by a single active consumer, or by an exclusive one, and handed over in two phases."""

from __future__ import annotations

from flyball.brokers.port import Receiver
from flyball.brokers.rabbitmq.admin import GroupQueue
from flyball.brokers.rabbitmq.broker import RabbitMqBroker
from flyball.groups.policy.group import Queue
from flyball.groups.readers.two_phase import TwoPhaseReaders, queue_name


class RabbitReaders(TwoPhaseReaders):
    """See `port.QueueReaders`."""

    def __init__(self, broker: RabbitMqBroker, window: int = 100) -> None:
        super().__init__(broker, window)
        self._rabbitmq = broker
        self._kinds: dict[Queue, GroupQueue] = {}

    async def _declare(self, queue: Queue) -> None:
        if queue not in self._kinds:
            self._kinds[queue] = await self._rabbitmq.declare_group_queue(queue_name(queue))

    async def _open(self, queue: Queue) -> Receiver:
        await self._declare(queue)
        return await self._rabbitmq.group_receiver(
            queue_name(queue), self._kinds[queue], window=max(1, self.receiver.window)
        )
