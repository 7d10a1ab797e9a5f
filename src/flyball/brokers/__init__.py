"""Message brokers behind one port: `connect(url)` chooses the adapter by the URL's scheme.

    memory://            in this process, for tests and trials
    sqlite:///path       embedded: durable, shared by processes, no server
    amqp:// amqps://     RabbitMQ classic and quorum queues
    rabbitmq-stream://   RabbitMQ streams
    kafka://             Kafka
    cluster://           a clustered queue on several of these (`flyball.cluster`)

`port` is the interface, `log_reader` the one for bulk reading without an event loop, `url` parses the URL,
`connections` shares connections, and `delivery_receipts` report handled messages to their publisher. `core` is
what adapters share. Each adapter is a package with the same files, as far as its broker needs them:

    broker.py       `connect`, and the port's `Broker`
    config.py       the options of the URL (`rabbitmq_stream`: in connection.py, `sqlite`: in schema.py)
    connection.py   the connection, and how it comes back after an outage
    codec.py        a message in the broker's format, and back
    sender.py, receiver.py, log_reader.py, admin.py

and with files of its own: `sqlite` has schema, writer, append and claims; `rabbitmq` has policy (pure decisions),
consumer_switch, management, errors, delivery_frames and pika_internals; `rabbitmq_stream` has chunks and group;
`kafka` has producer and sequences; `memory` is broker and hub. `flyball.testing.broker_contract` is the test suite
that every adapter passes.
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
    "check_url",
    "connect",
]

# scheme → adapter, which has `async def connect(url: BrokerUrl) -> Broker`. These are names, imported when a URL
# asks for them: the cluster is built on brokers, and is not imported by them.
ADAPTERS: dict[str, str] = {
    "amqp": "flyball.brokers.rabbitmq",
    "amqps": "flyball.brokers.rabbitmq",
    "memory": "flyball.brokers.memory",
    "sqlite": "flyball.brokers.sqlite",
    "kafka": "flyball.brokers.kafka",
    "rabbitmq-stream": "flyball.brokers.rabbitmq_stream",
    "cluster": "flyball.cluster.broker",
}


def check_url(url: str) -> BrokerUrl:
    """Parse the URL of a broker; raises `InvalidValue` if there is no adapter for it."""
    parsed = BrokerUrl.parse(url)
    if parsed.scheme not in ADAPTERS:
        known = ", ".join(f"{scheme}://" for scheme in ADAPTERS)
        raise InvalidValue(f"unknown scheme {parsed.scheme}:// in {parsed}: use one of {known}")
    return parsed


async def connect(url: str, *, create: bool = True) -> Broker:
    """Open a broker; use it as an async context manager, or close it yourself.

    An embedded broker whose file does not exist yet is created, unless `create` is False: for a program that only
    reads or consumes, a missing file means a mistyped path.
    """
    parsed = check_url(url)
    adapter = importlib.import_module(ADAPTERS[parsed.scheme])
    if not create and hasattr(adapter, "check_exists"):
        adapter.check_exists(parsed)
    broker: Broker = await adapter.connect(parsed)
    return broker
