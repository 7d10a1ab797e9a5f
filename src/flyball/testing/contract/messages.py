"""Messages that the contract sends, and helpers to compare what was received."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from flyball.brokers import Broker, Delivery, Message, Record
from flyball.brokers.port import HeaderValue


def fresh_name() -> str:
    return f"contract.{uuid.uuid4().hex[:12]}"


def numbered(count: int) -> list[Message]:
    return [Message(b"%d" % at) for at in range(count)]


def odd_messages() -> list[Message]:
    """Messages with every kind of content, key, header and time."""
    headers: dict[str, HeaderValue] = {
        "text": "Grüße ✓",
        "empty": "",
        "int": -(2**62),
        "zero": 0,
        "float": 0.1,
        "whole": 3.0,
        "yes": True,
        "no": False,
        "bytes": bytes(range(256)),
        "no bytes": b"",
    }
    return [
        Message(b"plain"),
        Message(bytes(range(256)), key=bytes(range(255, -1, -1))),
        Message(b"", key=b""),
        Message(b"{}", headers=headers, content_type="application/json"),
        Message(b"old", event_time_s=-86400.5),
        Message(b"now", event_time_s=1_790_000_000.123456, key=b"k", content_type="text/plain; charset=utf-8"),
        Message(b"given id", id="order-0001/ü"),
    ]


def assert_same(got: Message, sent: Message) -> None:
    assert (got.id, got.key, got.body, got.content_type) == (sent.id, sent.key, sent.body, sent.content_type)
    assert dict(got.headers) == dict(sent.headers)
    assert {name: type(value) for name, value in got.headers.items()} == {
        name: type(value) for name, value in sent.headers.items()
    }
    assert got.event_time_s == sent.event_time_s


def ids(items: Sequence[Message] | Sequence[Delivery]) -> list[str]:
    return [item.message.id if isinstance(item, Delivery) else item.id for item in items]


async def records(broker: Broker, log: str, partition: int, start: int, stop: int) -> list[Record]:
    return [record async for chunk in broker.read(log, partition, start, stop) for record in chunk]
