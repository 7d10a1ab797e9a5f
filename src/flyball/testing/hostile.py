"""Hostile messages: what a careless caller may pass, and what a foreign program may write to a broker.

Sending: `hostile_messages(seed, count)` yields arguments of `Message`. One or two fields have a value of any type
that a Python program may hold: wrong types, subclasses, numpy scalars, enumerations, huge numbers, NaN, dates,
lone surrogates, empty and huge texts, names of 255 and 256 bytes, nested values. Whatever it is, one of two things
holds: the call raises `InvalidValue`, or the message arrives with equal content (`differences`). `must` says more
only where the contract does.

Receiving: `foreign_amqp`, `foreign_kafka`, `foreign_stream` and `foreign_sqlite` yield what a program without
Flyball may send with the broker's own client (or write into the file): every property and header, those of Flyball
included, with wrong types and damaged values. Each arrives as a delivery, readable or not, and nothing beside it
is touched.

`hostile_runs` sends both kinds to a site of `flyball.testing.faults`.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import json
import math
import random
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from flyball.brokers.rabbitmq_stream.codec import encode as encode_stream
from flyball.brokers.sqlite.codec import encode as encode_sqlite
from flyball.message import Message

Arguments: TypeAlias = dict[str, Any]
Make: TypeAlias = Callable[[random.Random, int], Any]
"""A value for the message with this number."""


@dataclass(frozen=True, slots=True)
class HostileMessage:
    """Arguments of `Message`, `body` and `id` included, and which fields are out of the ordinary."""

    number: int
    fields: tuple[str, ...]
    arguments: Arguments
    must: Literal["accept", "refuse"] | None = None

    def __str__(self) -> str:
        values = ", ".join(f"{name}={_shown(self.arguments.get(name))}" for name in self.fields)
        return f"message {self.number} with {values}"


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 – some of these values have no text
        return f"a value of type {type(value).__name__}"


class _Text(str):
    __slots__ = ()


class _Bytes(bytes):
    __slots__ = ()


class _Integer(int):
    pass


class _Float(float):
    pass


class _Level(enum.IntEnum):
    LOW = 1
    HIGH = 2**40


class _Color(enum.StrEnum):
    RED = "red"


class _Plain(enum.Enum):
    ONE = 1


class _Silent:
    """An object whose text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def _constant(value: Any) -> Make:
    return lambda _rng, _number: value


_SURROGATE = "name-\udc80-of-a-file"
_DEEP: list[Any] = []
for _ in range(sys.getrecursionlimit() + 100):
    _DEEP = [_DEEP]

_ANYTHING: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, -(2**63) - 1, 10**400, 10**5000, 1.5, math.nan, math.inf, 1 + 2j, "", "text",
    _SURROGATE, b"", b"bytes",
    bytearray(b"array"), memoryview(b"view"), [], ["a"], (), ("a", 1), {}, {"a": 1}, {1: 2}, set(),
    frozenset({1}), object(),
    int, len, _Silent(), _Plain.ONE, _Level.HIGH, _Color.RED, datetime.datetime(2026, 1, 1),
    datetime.date(2026, 1, 1),
    datetime.timedelta(1), decimal.Decimal("1.5"), decimal.Decimal("NaN"), fractions.Fraction(1, 3),
    uuid.UUID(int=7),
    np.int64(3), np.uint64(2**64 - 1), np.float64(0.1), np.float32(0.1), np.float64("nan"), np.bool_(True),
    np.str_("text"),
    np.bytes_(b"bytes"), np.datetime64("2026-01-01"), np.array([1, 2]), np.array(3), range(3), Ellipsis,
    NotImplemented,
    _DEEP,
)  # fmt: skip
"""Values of every type; each field gets each of them."""

_BODIES: tuple[Make, ...] = (
    _constant(b""),
    _constant(_Bytes(b"subclass")),
    _constant(bytes(range(256))),
    lambda rng, _: rng.randbytes(rng.choice((1, 255, 256, 65_535, 65_536, 131_064, 131_065, 200_000))),
)

_IDS: tuple[Make, ...] = (
    lambda _, number: _Text(f"h-{number}"),
    lambda _, number: np.str_(f"h-{number}"),
    lambda _, number: f"h-{number}\x00",
    lambda _, number: f"h-{number}\r\n\t",
    lambda _, number: f"h-{number}-\ud800",
    lambda _, number: f"h-{number}-Grüße-✓-😀",
    lambda _, number: f"h-{number}-".ljust(255, "x"),
    lambda _, number: f"h-{number}-".ljust(256, "x"),
    lambda _, number: f"h-{number}-".ljust(70_000, "x"),
    lambda _, number: f"h-{number}-" + "ü" * 123,
    lambda _, number: f"h-{number}-" + "ü" * 128,
    lambda _, number: number,
    lambda _, number: f"h-{number}".encode(),
    lambda _, number: uuid.UUID(int=number),
)

_KEYS: tuple[Make, ...] = (
    _constant(b""),
    _constant(b"\x00"),
    _constant(bytes(range(256))),
    _constant(bytes(70_000)),
    _constant(bytes(200_000)),
    _constant(_Bytes(b"subclass")),
)

_TIMES: tuple[Make, ...] = tuple(
    _constant(value)
    for value in (
        0, -1, 1, 0.0, -0.0, 1.5, -86_400.5, 1_790_000_000.123456, 1_790_000_000_000, 2**31, 2**53, 2**63,
        2**64, 1.8e19,
        1e300, 5e-324, -math.inf, True, _Float(2.5), _Integer(3), np.float64(1.5), np.float32(1.5), np.int32(7),
        np.float16(1.5), np.longdouble(1.5), _Level.LOW,
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "2026-01-01T00:00:00Z", "1.5",
    )
)  # fmt: skip

_TYPES: tuple[Make, ...] = tuple(
    _constant(value)
    for value in ("", "text/plain", "text/plain\x00", "x" * 255, "x" * 256, "ü" * 127, "ü" * 128, "x" * 70_000,
                  _Text("a/b"))
)  # fmt: skip

_HEADER_NAMES: tuple[Any, ...] = (
    "", "n", "Grüße", "a\x00b", "x" * 255, "x" * 256, "ü" * 127, "ü" * 128, _SURROGATE, _Text("sub"),
    np.str_("numpy"),
    _Color.RED, b"bytes", 1, None, ("a",),
    # names that adapters and Consumer use themselves
    "x-flyball-key", "x-flyball-event-time", "x-flyball-floats", "x-delivery-count", "x-death", "message-id",
    "content-type", "event-time", "header-types", "producer-sequence", "flyball-key", "flyball-event-time",
    "flyball-error", "flyball-channel",
)  # fmt: skip

_HEADER_VALUES: tuple[Any, ...] = (
    *_ANYTHING, 2**31, 2**63 - 1, -(2**63), _Integer(3), _Float(2.5), _Text("sub"), _Bytes(b"sub"), "x" * 1000,
    "x" * 200_000,
    bytes(range(256)), -0.0, 5e-324, 1e308, "true", "1", "\x00",
)  # fmt: skip


def _headers(rng: random.Random, _number: int) -> Any:
    kind = rng.randrange(10)
    if kind == 0:
        return rng.choice(([("a", "b")], "text", 7, {"a": {"b": "c"}}, {"a": ["b"]}))
    if kind == 1:
        return {f"header-{number}": number for number in range(rng.choice((10, 1000, 20_000)))}
    if kind == 2:
        return collections.OrderedDict([("a", "1"), ("b", 2)])
    return {
        rng.choice(_HEADER_NAMES) if rng.random() < 0.4 else f"name-{at}": rng.choice(_HEADER_VALUES)
        for at in range(rng.randrange(1, 4))
    }


_FIELDS: dict[str, tuple[Make, ...]] = {
    "body": _BODIES,
    "id": _IDS,
    "key": _KEYS,
    "headers": (_headers,) * 3,
    "event_time_s": _TIMES,
    "content_type": _TYPES,
}
# The id of a message tells it from others, so here no value occurs twice; None means "make one".
_ANY_TYPE_FIELDS = ("body", "key", "headers", "event_time_s", "content_type")


def hostile_messages(seed: int, count: int) -> Iterator[HostileMessage]:
    """Yield messages that are out of the ordinary, the same for the same seed."""
    rng = random.Random(f"hostile {seed}")
    for number in range(count):
        arguments: Arguments = {"body": b"body of h-%d" % number, "id": f"h-{number}"}
        fields = tuple(rng.sample(sorted(_FIELDS), rng.choice((1, 1, 1, 2))))
        for name in fields:
            if name in _ANY_TYPE_FIELDS and rng.random() < 0.3:
                arguments[name] = rng.choice(_ANYTHING)
            else:
                arguments[name] = rng.choice(_FIELDS[name])(rng, number)
        yield HostileMessage(number, fields, arguments, _expected(arguments))


def _expected(arguments: Arguments) -> Literal["accept", "refuse"] | None:
    """What the contract says for certain: wrong types are refused, what every broker carries is accepted."""
    body, key, time_s = (arguments.get(name) for name in ("body", "key", "event_time_s"))
    if not isinstance(body, bytes | bytearray | memoryview) or (key is not None and isinstance(key, str | float)):
        return "refuse"
    if isinstance(time_s, str) or (isinstance(time_s, float) and not math.isfinite(time_s)):
        return "refuse"
    if set(arguments) == {"body", "id", "event_time_s"} and type(body) is bytes and type(arguments["id"]) is str:
        usual = isinstance(time_s, float | np.float64 | np.float32) and 0 <= time_s < 1e10
        return "accept" if usual and len(arguments["id"]) < 20 and arguments["id"].isalnum() else None
    return None


def differences(arguments: Arguments, arrived: Message) -> list[str]:
    """Compare a message with the arguments it was made from: the fields whose content is not equal."""
    found = []
    if bytes(arguments["body"]) != arrived.body:
        found.append("body")
    if arguments.get("id") is not None and arguments["id"] != arrived.id:
        found.append("id")
    key = arguments.get("key")
    if (None if key is None else bytes(key)) != arrived.key:
        found.append("key")
    time_s = arguments.get("event_time_s")
    if (None if time_s is None else float(time_s)) != arrived.event_time_s:
        found.append("event_time_s")
    if arguments.get("content_type") != arrived.content_type:
        found.append("content_type")
    headers = arguments.get("headers") or {}
    if set(headers) != set(arrived.headers) or any(
        not _same(value, arrived.headers[name]) for name, value in headers.items()
    ):
        found.append("headers")
    return found


def _same(given: Any, arrived: Any) -> bool:
    if isinstance(given, float | np.floating):
        return type(arrived) is float and (float(given) == arrived or (math.isnan(given) and math.isnan(arrived)))
    if isinstance(given, bool | np.bool_):
        return type(arrived) is bool and bool(given) == arrived
    if isinstance(given, int | np.integer):
        return type(arrived) is int and int(given) == arrived
    if isinstance(given, str):
        return type(arrived) is str and str.__eq__(given, arrived)
    return type(arrived) is bytes and bytes(given) == arrived


def is_plain(message: Message) -> bool:
    """Whether a received message has only values of the types that `Message` promises."""
    return (
        type(message.body) is bytes
        and type(message.id) is str
        and (message.key is None or type(message.key) is bytes)
        and (message.content_type is None or type(message.content_type) is str)
        and (message.event_time_s is None or type(message.event_time_s) is float)
        and all(
            type(name) is str and type(value) in (str, int, float, bool, bytes)
            for name, value in message.headers.items()
        )
    )


# --- RabbitMQ: properties that any AMQP 0-9-1 client may set ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForeignAmqp:
    """A message for `basic_publish`: pieces of the header frame's properties, in the protocol's order; body."""

    flags: int
    properties: bytes
    body: bytes


# name → bit of the property flags, in the order in which they are written
_AMQP_FLAGS = {
    "content_type": 15, "content_encoding": 14, "headers": 13, "delivery_mode": 12, "priority": 11,
    "correlation_id": 10,
    "reply_to": 9, "message_id": 7, "timestamp": 6, "type": 5, "app_id": 3, "cluster_id": 2,
}  # fmt: skip
_OWN_HEADERS = (b"x-flyball-key", b"x-flyball-event-time", b"x-flyball-floats", b"x-delivery-count")


def foreign_amqp(seed: int, count: int) -> Iterator[ForeignAmqp]:
    """Yield messages as clients of other languages may publish them, the same for the same seed."""
    rng = random.Random(f"amqp {seed}")
    for number in range(count):
        pieces, flags = [], 0
        for name, bit in _AMQP_FLAGS.items():
            if rng.random() < (0.7 if name in ("headers", "timestamp", "message_id") else 0.2):
                flags |= 1 << bit
                pieces.append(_amqp_property(rng, name, number))
        yield ForeignAmqp(flags, b"".join(pieces), rng.randbytes(rng.choice((0, 1, 20, 5000))))


def _amqp_property(rng: random.Random, name: str, number: int) -> bytes:
    if name == "headers":
        return _amqp_table(rng, depth=0)
    if name == "delivery_mode":
        return bytes((rng.choice((1, 2)),))
    if name == "priority":
        return bytes((rng.randrange(256),))
    if name == "timestamp":
        return struct.pack(">Q", rng.choice((0, 1_790_000_000, 1_790_000_000_000, 2**53, 2**63, 2**64 - 1)))
    if name == "message_id":
        return _amqp_short(rng.choice((b"f-%d", b"f-%d-\xff\xfe", b"f-%d-\xc3\xbc")) % number)
    if name == "app_id" and rng.random() < 0.5:
        return _amqp_short(b"flyball")
    return _amqp_short(rng.choice((b"", b"text", b"\xff\xfe", b"x" * 255, "Grüße".encode(), b"\x01")))


def _amqp_short(raw: bytes) -> bytes:
    return bytes((len(raw),)) + raw


def _amqp_table(rng: random.Random, depth: int) -> bytes:
    names = [f"h{at}".encode() for at in range(rng.randrange(4))]
    if rng.random() < 0.1:
        names.append(rng.choice((b"\xff\xfe", b"", b"n" * 255)))
    if depth == 0 and rng.random() < 0.6:
        names += rng.sample(_OWN_HEADERS, rng.randrange(1, 3))
    content = b"".join(_amqp_short(name) + _amqp_value(rng, depth) for name in names)
    return struct.pack(">I", len(content)) + content


def _amqp_value(rng: random.Random, depth: int) -> bytes:
    kind = rng.choice("tbBsuIilfdDSxTV" + ("AF" if depth < 3 else ""))
    code = kind.encode()
    if kind == "t":
        return code + bytes((rng.randrange(2),))
    if kind in "bB":
        return code + rng.randbytes(1)
    if kind in "su":
        return code + rng.randbytes(2)
    if kind in "Ii":
        return code + rng.randbytes(4)
    if kind == "l":
        return code + rng.choice((rng.randbytes(8), struct.pack(">q", -(2**63))))
    if kind == "f":
        return code + struct.pack(">f", rng.choice((0.5, -1.0, 3e38)))  # RabbitMQ refuses NaN and infinity
    if kind == "d":
        return code + struct.pack(">d", rng.choice((0.1, 1e300, 5e-324)))
    if kind == "D":
        return code + rng.choice((b"\x02", b"\x00", b"\xff")) + rng.randbytes(4)
    if kind == "T":
        return code + struct.pack(">Q", rng.choice((0, 1_790_000_000, 1_790_000_000_000, 2**63, 2**64 - 1)))
    if kind in "Sx":
        raw = rng.choice((b"", b"text", b"abc", b"1.5", b"nan", b"\xff\xfe", b'["h0"]', b"9" * 5000))
        return code + struct.pack(">I", len(raw)) + raw
    if kind == "A":
        content = b"".join(_amqp_value(rng, depth + 1) for _ in range(rng.randrange(4)))
        return code + struct.pack(">I", len(content)) + content
    if kind == "F":
        return code + _amqp_table(rng, depth + 1)
    return code


# --- Kafka: records of any producer -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """Arguments of `Producer.produce`."""

    value: bytes | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int | None


_KAFKA_NAMES = ("message-id", "content-type", "event-time", "header-types", "producer-sequence")
_KAFKA_VALUES = (
    None, b"", b"text", b"\xff\xfe", b"abc", b"1.5", b"nan", b"inf", b"-inf", b"1e999", b"9" * 5000,
    b"2026-01-01T00:00:00Z",
    b"{}", b"[]", b"null", b"[", b"{\"h0\": \"i\"}", b"{\"h0\": \"f\", \"h1\": \"b\"}", b"{\"h0\": 7}",
    b"{\"h0\": [\"i\"]}",
    b"{\"h0\": \"?\"}", b"{\"message-id\": \"i\"}", b"[" * 20_000, b"\xc3\xbc", b"0", b"-1", b"7:9",
    b"18446744073709551616",
)  # fmt: skip


def foreign_kafka(seed: int, count: int) -> Iterator[ForeignRecord]:
    """Yield records as any producer may write them, the same for the same seed."""
    rng = random.Random(f"kafka {seed}")
    for number in range(count):
        names = [f"h{at}" for at in range(rng.randrange(3))] + rng.sample(_KAFKA_NAMES, rng.randrange(4))
        if rng.random() < 0.2:
            names += [*rng.sample(names, min(1, len(names))), "", "Grüße"]
        headers = [(name, rng.choice(_KAFKA_VALUES)) for name in names]
        # Ids must differ: a reader drops a repeat, as it should.
        headers = [
            (name, value if name != "message-id" or value is None else b"f-%d-" % number + value)
            for name, value in headers
        ]
        yield ForeignRecord(
            rng.choice((None, b"", b"value", rng.randbytes(50))),
            rng.choice((None, b"", b"key", b"\xff")),
            headers,
            rng.choice((None, 1, 1_790_000_000_000)),
        )


# --- RabbitMQ streams: entries of any client --------------------------------------------------------------------

_AMQP1_VALUES = (
    b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x45", b"\x50\xff", b"\x51\xff", b"\x52\x07", b"\x53\x07",
    b"\x54\xff",
    b"\x55\xff", b"\x56\x01", b"\x60\xff\xff", b"\x61\xff\xff", b"\x70\xff\xff\xff\xff", b"\x71\xff\xff\xff\xff",
    b"\x72\x7f\xc0\x00\x00", b"\x73\x00\x00\x00\x41", b"\x74\x00\x00\x00\x01", b"\x80" + b"\xff" * 8,
    b"\x81" + b"\xff" * 8,
    b"\x82\x7f\xf8" + bytes(6), b"\x82\x7f\xf0" + bytes(6), b"\x83" + b"\x7f" * 8, b"\x84" + bytes(8),
    b"\x94" + bytes(16),
    b"\x98" + bytes(range(16)), b"\xa0\x03abc", b"\xa1\x03abc", b"\xa1\x02\xff\xfe", b"\xa3\x03abc",
    b"\xa3\x02\xff\xfe",
    b"\xb0\x00\x00\x00\x03abc", b"\xb1\x00\x00\x00\x03abc", b"\xc0\x01\x00", b"\xc0\x03\x02\x40\x40",
    b"\xc1\x01\x00",
    b"\xc1\x03\x02\x40\x40", b"\xc1\x02\x01\x40", b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
    b"\xe0\x04\x02\x50\x01\x02",
    b"\x00\x53\x73\x40", b"\xff", b"\xc0\x00\x01\xc0" * 3000, b"\xb1\xff\xff\xff\xff", b"\xa1\xff",
)  # fmt: skip
_AMQP1_NAMES = (
    b"\xa1\x0bflyball-key",
    b"\xa1\x12flyball-event-time",
    b"\xa1\x02h0",
    b"\xa1\x02\xff\xfe",
    b"\x50\x07",
    b"\x40",
)


def foreign_stream(seed: int, count: int) -> Iterator[bytes]:
    """Yield entries as any client may append them, AMQP 1.0 or not, the same for the same seed."""
    rng = random.Random(f"stream {seed}")
    for number in range(count):
        kind = rng.randrange(4)
        if kind == 0:
            yield rng.randbytes(rng.choice((1, 2, 3, 8, 100)))
            continue
        id = f"{rng.getrandbits(64):016x}"  # damaged ids must differ, too: a reader drops a repeat, as it should
        good = encode_stream(Message(b"body", id, b"key", {"h0": "text", "h1": 7}, 1.5, "text/plain"))
        if kind == 1:  # damaged
            damaged = bytearray(good[: rng.choice((rng.randrange(1, 8), rng.randrange(20, len(good) + 1)))])
            for _ in range(rng.randrange(4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            yield bytes(damaged)
            continue
        entry = b""
        if rng.random() < 0.5:
            entry += b"\x00\x53\x70" + rng.choice((b"\xc0\x02\x01\x41", *_AMQP1_VALUES))  # a header section
        if rng.random() < 0.7:
            fields = _amqp1_id(rng, number) + b"".join(rng.choice(_AMQP1_VALUES) for _ in range(6))
            entry += b"\x00\x53\x73" + struct.pack(">BII", 0xD0, len(fields) + 4, rng.choice((1, 7))) + fields
        if rng.random() < 0.7:
            pairs = b"".join(rng.choice(_AMQP1_NAMES) + rng.choice(_AMQP1_VALUES) for _ in range(2))
            entry += b"\x00\x53\x74" + struct.pack(">BII", 0xD1, len(pairs) + 4, 4) + pairs
        entry += rng.choice((b"\x00\x53\x75\xa0\x04body", b"\x00\x53\x77" + rng.choice(_AMQP1_VALUES), b""))
        yield entry or b"\x00"


def _amqp1_id(rng: random.Random, number: int) -> bytes:
    raw = f"f-{number:06d}".encode()
    kind = rng.randrange(7)
    if kind == 0:
        return b"\x40"
    if kind in (1, 2):
        return rng.choice((b"\xa0", b"\xa1", b"\xa3")) + bytes((len(raw),)) + raw
    if kind in (3, 4):
        return rng.choice((b"\x80", b"\x81", b"\x83")) + (number + 1).to_bytes(8)
    if kind == 5:
        return b"\x98" + number.to_bytes(16)
    return b"\xc0\x0a\x01\x80" + number.to_bytes(8)


# --- SQLite: what may stand in a batch's value ------------------------------------------------------------------


def foreign_sqlite(seed: int, count: int) -> Iterator[bytes]:
    """Yield values of one message each that another program, or a damaged disk, may leave; the same for a seed.

    The number of the layout stays: a newer one stops a reader on purpose, until it is updated.
    """
    rng = random.Random(f"sqlite {seed}")
    for _ in range(count):
        id = f"{rng.getrandbits(64):016x}"
        good = encode_sqlite([Message(b"body", id, b"key", {"h0": "text", "h1": 7}, 1.5, "text/plain")])
        kind = rng.randrange(4)
        if kind == 0:
            yield b"\x01"[:size] + rng.randbytes(size - 1) if (size := rng.choice((0, 1, 12, 13, 200))) else b""
        elif kind == 1:
            yield good[: rng.randrange(len(good))]
        elif kind == 2:
            damaged = bytearray(good)
            for _ in range(rng.randrange(1, 5)):
                damaged[rng.randrange(1, len(damaged))] = rng.randrange(256)
            yield bytes(damaged)
        else:
            extras = json.dumps(
                {
                    "ids": [rng.choice((id, 7, None, ["a"]))],
                    "headers": [
                        rng.choice((None, 7, "x", ["a"], {"a": {"b": 1}}, {"a": [7]}, {"a": []}, {"a": ["%"]}))
                    ],
                    "types": rng.choice(([], [7], ["a", "b"], "text", {"a": 1})),
                }
            ).encode()
            yield struct.pack("<BBHII", 1, 0, 0, 1, len(extras)) + struct.pack("<I", 4) + extras + b"body"
