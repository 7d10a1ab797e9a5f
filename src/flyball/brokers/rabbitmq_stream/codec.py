"""Messages as AMQP 1.0, the format every RabbitMQ stream client reads: written and read by hand for speed.

The id is the property `message-id`, the content type the property `content-type`, the body one data section.
Headers are application properties, and so are `flyball-key` (binary) and `flyball-event-time` (a double), which
AMQP cannot express. A message without `message-id` comes from a foreign program: its offset in the log is its id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from flyball.brokers.port import HeaderValue, Message
from flyball.message import MAX_TIME_S

KEY, EVENT_TIME = "flyball-key", "flyball-event-time"

_NO_HEADERS: Mapping[str, HeaderValue] = MappingProxyType({})
# A section begins with a descriptor: 0x00, small unsigned number, its code.
_PROPERTIES, _APPLICATION, _DATA = b"\x00\x53\x73", b"\x00\x53\x74", b"\x00\x53\x75"
_PROPERTIES_CODE, _APPLICATION_CODE = 0x73, 0x74
_BODY_CODES = (0x75, 0x76, 0x77)  # data, sequence, value
_SECTION_CODES = range(0x70, 0x79)
_SECTION_NAMES = {
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}
_DESCRIBED = 0x00
_LIST8, _LIST32, _MAP8, _MAP32, _ARRAY8, _ARRAY32 = 0xC0, 0xD0, 0xC1, 0xD1, 0xE0, 0xF0
_SHORT_LENGTH = (0xA0, 0xA1, 0xA3, _LIST8, _MAP8, _ARRAY8)
_LONG_LENGTH = (0xB0, 0xB1, 0xB3, _LIST32, _MAP32, _ARRAY32)
_DEEPEST = 32
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
    0x73: (4, lambda raw: raw.decode("utf-32-be")),
    0x74: (4, bytes.hex),  # decimal numbers, of 32, 64 and 128 bits
    0x84: (8, bytes.hex),
    0x94: (16, bytes.hex),
    0x98: (16, bytes.hex),  # a UUID
}


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


def decode(raw: bytes, stream: str, offset: int) -> tuple[Message, str | None]:
    """The message of one stream entry, and why it is unreadable, if so; then the body is the entry as it is.

    `stream` and `offset` name a message that has no id.
    """
    try:
        # Exactly our id and a body: no walk through the sections.
        if raw[:4] == b"\x00Ss\xc0" and raw[5:7] == b"\x01\xa1" and raw[7]:
            at = 8 + raw[7]
            if raw[at : at + 4] == b"\x00Su\xa0" and raw[at + 4] == len(raw) - at - 5:
                return Message(raw[at + 5 :], raw[8:at].decode(), None, _NO_HEADERS, None, None), None
            if raw[at : at + 4] == b"\x00Su\xb0" and int.from_bytes(raw[at + 4 : at + 8]) == len(raw) - at - 8:
                return Message(raw[at + 8 :], raw[8:at].decode(), None, _NO_HEADERS, None, None), None
        if isinstance(raw, UnreadableEntry):
            raise ValueError(raw.reason)
        return _message(_sections(raw), stream, offset)
    except (IndexError, ValueError, struct.error) as error:
        reason = f"offset {offset} of stream {stream!r} is not an AMQP 1.0 message: {error}"
        return Message(bytes(raw), f"{stream}:{offset}"), reason


class UnreadableEntry(bytes):
    """Bytes of an entry whose message could not even be separated from others; `reason` says why."""

    def __new__(cls, raw: bytes, reason: str) -> UnreadableEntry:
        entry = super().__new__(cls, raw)
        entry.reason = reason
        return entry

    reason: str


def _sections(raw: bytes) -> list[tuple[int, Any]]:
    """The sections of a message: the code of each and its content."""
    at, sections = 0, []
    while at < len(raw):
        if raw[at] != _DESCRIBED:
            raise ValueError(f"no section begins at byte {at}")
        name, at = _read(raw, at + 1)
        code = _SECTION_NAMES.get(name, 0) if isinstance(name, str) else name
        if code not in _SECTION_CODES:
            raise ValueError(f"there is no section {name!r:.60}")
        content, at = _read(raw, at)
        sections.append((code, content))
    if not sections:
        raise ValueError("it is empty")
    return sections


def _message(sections: list[tuple[int, Any]], stream: str, offset: int) -> tuple[Message, str | None]:
    bodies: list[bytes] = []
    properties: list[Any] = []
    application: dict[Any, Any] = {}
    for code, content in sections:
        if code == _PROPERTIES_CODE:
            properties = _expect("properties", content, list)
        elif code == _APPLICATION_CODE:
            application = _expect("application properties", content, dict)
        elif code in _BODY_CODES and content is not None:
            bodies.append(content if isinstance(content, bytes) else str(content).encode())
    id = properties[0] if properties else None
    if isinstance(id, bytes):
        id = id.hex()
    id = f"{stream}:{offset}" if id is None or id == "" else str(id)
    content_type = properties[_CONTENT_TYPE_FIELD] if len(properties) > _CONTENT_TYPE_FIELD else None
    key, time = application.pop(KEY, None), application.pop(EVENT_TIME, None)
    headers = {str(name): _plain(value) for name, value in application.items()}
    message = Message(b"".join(bodies), id, None, headers or _NO_HEADERS)
    try:
        message.content_type = None if content_type is None else _expect("content type", content_type, str)
        message.event_time_s = None if time is None else _time(time)
        message.key = key.encode() if isinstance(key, str) else None if key is None else _expect(KEY, key, bytes)
    except ValueError as error:
        return message, str(error)
    return message, None


Kind = TypeVar("Kind")


def _expect(what: str, value: Any, kind: type[Kind]) -> Kind:
    if not isinstance(value, kind):
        raise ValueError(f"{what} must be {kind.__name__}, got {value!r:.60}")
    return value


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_TIME_S:
        raise ValueError(f"{EVENT_TIME} must be a number of seconds, at most 2**53 from 1970, got {value!r:.60}")
    return float(value)


def _plain(value: Any) -> HeaderValue:
    """Headers of other programs may hold lists, tables and nothing; ours hold plain values."""
    if value is None:
        return b""
    return value if isinstance(value, str | int | float | bytes) else str(value)


def _read(raw: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """One value of any type, and where it ends."""
    return _read_as(raw[at], raw, at + 1, depth)


def _read_as(code: int, raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    """A value whose type is known."""
    if code in _FIXED:
        size, convert = _FIXED[code]
        end = at + size
        if end > len(raw):
            raise ValueError("it is cut off")
        return convert(raw[at:end]), end
    if code == _DESCRIBED and depth < _DEEPEST:  # the description adds nothing that a header could hold
        return _read(raw, _read(raw, at, depth + 1)[1], depth + 1)
    width = 1 if code in _SHORT_LENGTH else 4
    if width == 4 and code not in _LONG_LENGTH:
        raise ValueError(f"there is no type of code {code:#x}")
    start = at + width
    end = start + int.from_bytes(raw[at:start])
    if end > len(raw):
        raise ValueError("it is cut off")
    if code in (0xA0, 0xB0):
        return raw[start:end], end
    if code in (0xA1, 0xB1, 0xA3, 0xB3):
        return raw[start:end].decode(), end
    if depth >= _DEEPEST:
        raise ValueError(f"values are nested deeper than {_DEEPEST} levels")
    count, at = int.from_bytes(raw[start : start + width]), start + width
    if count > len(raw):
        raise ValueError("it is cut off")
    values = []
    if code in (_ARRAY8, _ARRAY32):
        kind = raw[at]
        at += 1
        for _ in range(count):
            value, at = _read_as(kind, raw, at, depth + 1)
            values.append(value)
    else:
        for _ in range(count):
            value, at = _read(raw, at, depth + 1)
            values.append(value)
    if at > end:
        raise ValueError("a value is longer than what contains it")
    if code in (_MAP8, _MAP32):
        return {_hashable(key): value for key, value in zip(values[::2], values[1::2], strict=True)}, end
    return values, end


def _hashable(key: Any) -> Any:
    return str(key) if isinstance(key, list | dict) else key
