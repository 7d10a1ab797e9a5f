"""Messages that the contract sends, and helpers to compare what was received."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Sequence
from typing import Any

from flyball.brokers import Broker, Delivery, Message, Record
from flyball.brokers.port import HeaderValue
from flyball.message import RESERVED_HEADERS


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


def extreme_messages() -> list[Message]:
    """Messages at the limits of what all brokers can carry."""
    long = "é" * 127 + "x"
    headers: dict[str, HeaderValue] = {
        long: long,
        "least": -(2**63),
        "largest": 2**63 - 1,
        "tiny": 5e-324,
        "huge": 1.7976931348623157e308,
        "long": "x" * 40_000,
        "binary": bytes(40_000),
    }
    return [
        Message(b"long", id=long, content_type=long),
        Message(b"many headers", headers=headers, key=bytes(15_000)),
        Message(b"far future", event_time_s=2.0**53),
        Message(b"far past", event_time_s=-(2.0**53)),
        Message(b"all characters", id="\0\r\n \U0001f600", headers={" \r\n\U0001f600": "\0\r\n \U0001f600"}),
        Message(b"no type", content_type=""),
    ]


def unfit_messages() -> list[Message]:
    """Messages that no broker may accept: some broker would lose or change them, or fail for ever."""
    bodies: list[Any] = ["text", None, 5, bytearray(b"x"), [b"x"]]
    ids: list[Any] = ["", 17, b"id", "\udcff", "x" * 256, "é" * 128]
    keys: list[Any] = ["key", 7, bytes(100_001)]
    times: list[Any] = [
        "2026-01-01",
        datetime.datetime.now(datetime.UTC),
        math.inf,
        math.nan,
        1e20,
        10**5000,
        b"1",
    ]
    types: list[Any] = [5, ["a"], b"text/plain", "\ud800", "x" * 256]
    headers: list[Any] = [
        [("a", "b")],
        {5: "x"},
        {"": "x"},
        {"a\0b": "x"},
        {"x" * 256: "x"},
        {"\udcff": "x"},
        {"file": "\udcff"},
        {"n": None},
        {"n": [1]},
        {"n": {"a": 1}},
        {"n": 2**63},
        {"n": -(2**63) - 1},
        {"n": 10**5000},
        {"n": math.nan},
        {"n": -math.inf},
        {"n": decimal.Decimal(1)},
        {"n": 1j},
        {"n": "x" * 100_000},
        {f"{number}": "x" * 100 for number in range(1000)},
        *({name: "x"} for name in sorted(RESERVED_HEADERS)),
    ]
    return [
        *(Message(body) for body in bodies),
        *(Message(b"unfit", id=id) for id in ids),
        *(Message(b"unfit", key=key) for key in keys),
        *(Message(b"unfit", event_time_s=time) for time in times),
        *(Message(b"unfit", content_type=each) for each in types),
        *(Message(b"unfit", headers=each) for each in headers),
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
