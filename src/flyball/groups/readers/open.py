"""Open the readers that fit a broker."""

from __future__ import annotations

from typing import Protocol

from flyball.brokers.port import Broker, Start, Unsupported
from flyball.groups.readers.port import QueueReaders
from flyball.groups.readers.two_phase import TwoPhaseReaders
from flyball.groups.receiver import GroupReceiver
from flyball.store.url import open_database


class ConsumerReaders(QueueReaders, Protocol):
    """Readers whose messages a consumer receives."""

    @property
    def receiver(self) -> GroupReceiver:
        """The messages of all queues that are read."""

    async def depth(self) -> int:
        """Messages that wait in the queues that are read."""


def open_readers(
    broker: Broker, group: str, store: str, *, window: int = 100, start: Start = "earliest"
) -> ConsumerReaders:
    """Open the readers of one member; `store` is the URL of the group's database, for positions in logs.

    `start` says where a group begins to read a log if it has read nothing of it yet.
    """
    kind = type(broker).__module__
    if kind.startswith("flyball.brokers.rabbitmq."):
        from flyball.brokers.rabbitmq.broker import RabbitMqBroker
        from flyball.groups.readers.rabbitmq import RabbitReaders

        assert isinstance(broker, RabbitMqBroker)
        return RabbitReaders(broker, window)
    if kind.startswith("flyball.brokers.kafka."):
        from flyball.brokers.kafka.broker import KafkaBroker
        from flyball.groups.readers.kafka import KafkaReaders

        assert isinstance(broker, KafkaBroker)
        return KafkaReaders(broker, group, open_database(store), window=window, start=start)
    if not broker.capabilities.queues:
        raise Unsupported(
            "a group with a store reads queues or Kafka's partitions: read a stream with channel and group='name'"
        )
    return TwoPhaseReaders(broker, window)
