"""Message brokers behind one port: `connect(url)` chooses the adapter by the URL's scheme.

    memory://            in this process, for tests and trials
    sqlite:///path       embedded: durable, shared by processes, no server
    amqp:// amqps://     RabbitMQ classic and quorum queues
    rabbitmq-stream://   RabbitMQ streams
    kafka://             Kafka

`port` is the contract, one file an adapter; `flyball.testing.broker_contract` is the suite each of them passes.
"""

from __future__ import annotations

import importlib

from flyball.brokers.core.dedup import FinishedIds
from flyball.brokers.port import (
    Broker,
    Capabilities,
    ChannelInfo,
    Delivery,
    Message,
    Receiver,
    Record,
    Sender,
    SendResult,
)
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue

__all__ = [
    "Broker",
    "BrokerUrl",
    "Capabilities",
    "ChannelInfo",
    "Delivery",
    "FinishedIds",
    "Message",
    "Receiver",
    "Record",
    "SendResult",
    "Sender",
    "connect",
]

# scheme → adapter file in this room; each has `async def connect(url: BrokerUrl) -> Broker`
ADAPTERS: dict[str, str] = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "memory": "memory",
    "sqlite": "sqlite",
    "kafka": "kafka",
    "rabbitmq-stream": "rabbitmq_stream",
}


async def connect(url: str, *, create: bool = True) -> Broker:
    """Open a broker; use it as an async context manager, or close it yourself.

    An embedded broker whose file does not exist yet is made, unless `create` is False: who only looks, or takes
    messages away, has mistyped its path.
    """
    parsed = BrokerUrl.parse(url)
    if parsed.scheme not in ADAPTERS:
        known = ", ".join(f"{scheme}://" for scheme in ADAPTERS)
        raise InvalidValue(f"no broker speaks {parsed.scheme}:// (in {parsed}); use one of {known}")
    adapter = importlib.import_module(f"flyball.brokers.{ADAPTERS[parsed.scheme]}")
    if not create and hasattr(adapter, "check_exists"):
        adapter.check_exists(parsed)
    broker: Broker = await adapter.connect(parsed)
    return broker
