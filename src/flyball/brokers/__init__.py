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


async def connect(url: str) -> Broker:
    """Open a broker; use it as an async context manager, or close it yourself."""
    parsed = BrokerUrl.parse(url)
    if parsed.scheme not in ADAPTERS:
        known = ", ".join(f"{scheme}://" for scheme in ADAPTERS)
        raise InvalidValue(f"no broker speaks {parsed.scheme}:// (in {parsed}); use one of {known}")
    adapter = importlib.import_module(f"flyball.brokers.{ADAPTERS[parsed.scheme]}")
    broker: Broker = await adapter.connect(parsed)
    return broker
