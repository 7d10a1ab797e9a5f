"""Messages as AMQP 1.0, the format every RabbitMQ stream client reads: written and read by hand for speed.

The id is the property `message-id`, the content type the property `content-type`, the body one data section.
Headers are application properties, and so are `flyball-key` (binary) and `flyball-event-time` (a double), which
AMQP cannot express. A message without `message-id` comes from a foreign program: its offset in the log is its id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from flyball.brokers.port import HeaderValue, Message
from flyball.errors import FlyballError

KEY, EVENT_TIME = "flyball-key", "flyball-event-time"

_NO_HEADERS: Mapping[str, HeaderValue] = MappingProxyType({})
# A section begins with a descriptor: 0x00, small unsigned number, its code.
_PROPERTIES, _APPLICATION, _DATA, _VALUE = b"\x00\x53\x73", b"\x00\x53\x74", b"\x00\x53\x75", b"\x00\x53\x77"
_LIST8, _LIST32, _MAP8, _MAP32 = 0xC0, 0xD0, 0xC1, 0xD1
_CONTENT_TYPE_FIELD = 6  # of the list of properties; the message id is field 0
_FIXED: dict[int, tuple[int, Callable[[bytes], Any]]] = {
    0x40: (0, lambda _: None),
    0x41: (0, lambda _: True),
    0x42: (0, lambda _: False),
    0x43: (0, lambda _: 0),
    0x44: (0, lambda _: 0),
    0x45: (0, lambda _: []),
    0x50: (1, lambda raw: raw[0]),
    0x51: (1, lambda raw: struct.unpack(">b", raw)[0]),
    0x52: (1, lambda raw: raw[0]),
    0x53: (1, lambda raw: raw[0]),
    0x54: (1, lambda raw: struct.unpack(">b", raw)[0]),
    0x55: (1, lambda raw: struct.unpack(">b", raw)[0]),
    0x56: (1, lambda raw: raw[0] == 1),
    0x60: (2, lambda raw: int.from_bytes(raw)),
    0x61: (2, lambda raw: int.from_bytes(raw, signed=True)),
    0x70: (4, lambda raw: int.from_bytes(raw)),
    0x71: (4, lambda raw: int.from_bytes(raw, signed=True)),
    0x72: (4, lambda raw: struct.unpack(">f", raw)[0]),
    0x80: (8, lambda raw: int.from_bytes(raw)),
    0x81: (8, lambda raw: int.from_bytes(raw, signed=True)),
    0x82: (8, lambda raw: struct.unpack(">d", raw)[0]),
    0x83: (8, lambda raw: int.from_bytes(raw, signed=True)),  # a timestamp, in milliseconds
    0x98: (16, bytes.hex),  # a UUID
}


class UnreadableMessage(FlyballError, ValueError):
    """A record that is not AMQP 1.0."""


def encode(message: Message) -> bytes:
    """The message as AMQP 1.0.

    >>> encode(Message(b"hi", id="7"))
    b'\\x00Ss\\xc0\\x04\\x01\\xa1\\x017\\x00Su\\xa0\\x02hi'
    """
    id = message.id.encode()
    if message.content_type is None:
        fields = _short(0xA1, id)
        count = 1
    else:
        # Five fields between message id and content type are not set (null is 0x40).
        fields = _short(0xA1, id) + b"\x40" * 5 + _short(0xA3, message.content_type.encode())
        count = _CONTENT_TYPE_FIELD + 1
    if len(fields) < 255:
        head = _PROPERTIES + bytes((_LIST8, len(fields) + 1, count)) + fields
    else:
        head = _PROPERTIES + struct.pack(">BII", _LIST32, len(fields) + 4, count) + fields
    if message.headers or message.key is not None or message.event_time_s is not None:
        head += _application(message)
    body = message.body
    size = len(body)
    return b"".join((head, _DATA, b"\xa0%c" % size if size < 256 else struct.pack(">BI", 0xB0, size), body))


def _application(message: Message) -> bytes:
    pairs = b"".join(_short(0xA1, name.encode()) + _value(value) for name, value in message.headers.items())
    count = 2 * len(message.headers)
    if message.key is not None:
        pairs, count = pairs + _short(0xA1, KEY.encode()) + _value(message.key), count + 2
    if message.event_time_s is not None:
        pairs, count = pairs + _short(0xA1, EVENT_TIME.encode()) + _value(message.event_time_s), count + 2
    return _APPLICATION + struct.pack(">BII", _MAP32, len(pairs) + 4, count) + pairs


def _short(code: int, raw: bytes) -> bytes:
    """Text (0xA1), symbol (0xA3) or binary (0xA0); the long form's code is 16 higher."""
    if len(raw) < 256:
        return bytes((code, len(raw))) + raw
    return struct.pack(">BI", code + 0x10, len(raw)) + raw


def _value(value: HeaderValue) -> bytes:
    if isinstance(value, str):
        return _short(0xA1, value.encode())
    if isinstance(value, bytes):
        return _short(0xA0, value)
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        return struct.pack(">Bq", 0x81, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0x82, value)
    raise TypeError(f"a header cannot be {type(value).__name__}")


def decode(raw: bytes, stream: str, offset: int) -> Message:
    """The message of one stream entry; `stream` and `offset` name a message that has no id."""
    # Exactly our id and a body: no walk through the sections.
    if raw[:4] == b"\x00Ss\xc0" and raw[5:7] == b"\x01\xa1":
        at = 8 + raw[7]
        if raw[at : at + 4] == b"\x00Su\xa0":
            return Message(raw[at + 5 :], raw[8:at].decode(), None, _NO_HEADERS, None, None)
        if raw[at : at + 4] == b"\x00Su\xb0":
            return Message(raw[at + 8 :], raw[8:at].decode(), None, _NO_HEADERS, None, None)
    try:
        return _walk(raw, stream, offset)
    except (IndexError, ValueError, struct.error) as error:
        raise UnreadableMessage(
            f"offset {offset} of stream {stream!r} is not an AMQP 1.0 message ({error})"
        ) from None


def _walk(raw: bytes, stream: str, offset: int) -> Message:
    at, bodies = 0, []
    properties: list[Any] = []
    application: dict[str, Any] = {}
    while at < len(raw):
        section = raw[at : at + 3]
        content, at = _read(raw, at + 3)
        if section == _PROPERTIES:
            properties = content
        elif section == _APPLICATION:
            application = content
        elif section in (_DATA, _VALUE):
            bodies.append(content if isinstance(content, bytes) else str(content).encode())
    id = properties[0] if properties else None
    if isinstance(id, bytes):
        id = id.hex()
    content_type = properties[_CONTENT_TYPE_FIELD] if len(properties) > _CONTENT_TYPE_FIELD else None
    key, happened_s = application.pop(KEY, None), application.pop(EVENT_TIME, None)
    headers = {name: value for name, value in application.items() if isinstance(value, str | int | float | bytes)}
    return Message(
        b"".join(bodies),
        f"{stream}:{offset}" if id is None else str(id),
        key,
        headers or _NO_HEADERS,
        happened_s,
        content_type,
    )


def _read(raw: bytes, at: int) -> tuple[Any, int]:
    """One value of any type, and where it ends."""
    code = raw[at]
    at += 1
    if code in _FIXED:
        size, convert = _FIXED[code]
        return convert(raw[at : at + size]), at + size
    if code in (_LIST8, _MAP8, _LIST32, _MAP32):
        width = 1 if code in (_LIST8, _MAP8) else 4
        count = int.from_bytes(raw[at + width : at + 2 * width])
        at += 2 * width
        values = []
        for _ in range(count):
            value, at = _read(raw, at)
            values.append(value)
        if code in (_LIST8, _LIST32):
            return values, at
        return dict(zip(values[::2], values[1::2], strict=True)), at
    width = 1 if code in (0xA0, 0xA1, 0xA3) else 4
    if code not in (0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3):
        raise ValueError(f"unknown type code {code:#x}")
    end = at + width + int.from_bytes(raw[at : at + width])
    content = raw[at + width : end]
    return (content if code in (0xA0, 0xB0) else content.decode()), end
