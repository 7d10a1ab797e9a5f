"""Reads deliveries straight from the bytes that arrived.

A delivery whose body is one frame is read in one go as soon as it is complete, and handed to its receiver. So what
arrives while a consumer is being cancelled is kept in order, where pika would send it back.

On the wire a delivery is a method frame (basic.deliver: consumer, number, redelivered, exchange, routing key), a
header frame (body size, which properties follow, the properties) and a body frame; see `codec`.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

_FRAME = struct.Struct(">BHI")
_FRAME_AND_METHOD = struct.Struct(">BHII")
_CONTENT = struct.Struct(">BHIHHQH")
_NUMBER = struct.Struct(">QB")
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER = 60 << 16 | 60
_HEAD_BYTES, _END_BYTES = 7, 1
_LONG = struct.Struct(">I")
_FIXED_BY_CODE = {
    ord(code): struct.Struct(f">{layout}") for code, layout in zip("tbBUsuIilLTfd", "?bBhhHiIqqQfd", strict=True)
}
_TEXT, _BYTES, _TABLE, _LIST, _NOTHING, _DECIMAL, _DATE = map(ord, "SxFAVDT")
_LENGTH_FIRST = (_TEXT, _BYTES, _TABLE, _LIST)
_SCALED = struct.Struct(">Bi")
_DEEPEST = 32
_MALFORMED = (IndexError, ValueError, struct.error)


class Properties:
    """Those properties of a message that Flyball reads.

    `unreadable` says why some could not be decoded: what other programs set goes through the server unchecked.
    """

    __slots__ = ("app_id", "content_type", "headers", "message_id", "timestamp", "unreadable")

    def __init__(self, raw: bytes, at: int, flags: int, end: int) -> None:
        """Read the properties that `flags` announce from `raw[at:end]`."""
        self.content_type: str | None = None
        self.headers: dict[str, Any] | None = None
        self.message_id: str | None = None
        self.timestamp: int | None = None
        self.app_id: str | None = None
        self.unreadable: str | None = None
        try:
            if flags & 0x8000:
                self.content_type, at = _short(raw, at)
            if flags & 0x4000:  # content encoding
                at += 1 + raw[at]
            if flags & 0x2000:
                headers_end = at + 4 + _LONG.unpack_from(raw, at)[0]
                try:
                    self.headers = _table(raw, at + 4, headers_end)
                except _MALFORMED as error:
                    self.unreadable = f"its headers cannot be decoded: {error}"
                at = headers_end
            if flags & 0x1000:  # delivery mode
                at += 1
            if flags & 0x0800:  # priority
                at += 1
            for bit in (0x0400, 0x0200, 0x0100):  # correlation id, reply to, expiration
                if flags & bit:
                    at += 1 + raw[at]
            if flags & 0x0080:
                self.message_id, at = _identifier(raw, at)
            if flags & 0x0040:
                self.timestamp, at = int.from_bytes(raw[at : at + 8], "big"), at + 8
            for bit in (0x0020, 0x0010):  # type, user id
                if flags & bit:
                    at += 1 + raw[at]
            if flags & 0x0008:
                self.app_id, at = _short(raw, at)
            if at > end:
                raise ValueError("they are cut off")
        except _MALFORMED as error:
            self.unreadable = f"its properties cannot be decoded: {error}"


def _short(raw: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + raw[at]
    return raw[at + 1 : end].decode(errors="replace"), end


def _identifier(raw: bytes, at: int) -> tuple[str, int]:
    """A message id; one that is not text, as some programs have it, in hexadecimal digits."""
    end = at + 1 + raw[at]
    id = raw[at + 1 : end]
    try:
        return id.decode(), end
    except UnicodeDecodeError:
        return id.hex(), end


def _table(raw: bytes, at: int, end: int, depth: int = 0) -> dict[str, Any]:
    table: dict[str, Any] = {}
    while at < end:
        name, at = _short(raw, at)
        table[name], at = _value(raw, at, depth)
    if at > end:
        raise ValueError("a value is longer than the table that contains it")
    return table


def _value(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    """A value of any type that RabbitMQ knows, and where it ends."""
    code = raw[at]
    at += 1
    layout = _FIXED_BY_CODE.get(code)
    if layout is not None:
        value, at = layout.unpack_from(raw, at)[0], at + layout.size
        return (_date(value) if code == _DATE else value), at
    if code == _NOTHING:
        return None, at
    if code == _DECIMAL:
        places, digits = _SCALED.unpack_from(raw, at)
        return decimal.Decimal(digits).scaleb(-places), at + _SCALED.size
    if code not in _LENGTH_FIRST:
        raise ValueError(f"there is no type of code {code:#x}")
    start = at + 4
    end = start + _LONG.unpack_from(raw, at)[0]
    if code == _BYTES:
        return raw[start:end], end
    if code == _TEXT:
        text = raw[start:end]
        try:
            return text.decode(), end
        except UnicodeDecodeError:  # another program's idea of text
            return text, end
    if depth >= _DEEPEST:
        raise ValueError(f"tables and lists are nested deeper than {_DEEPEST} levels")
    if code == _TABLE:
        return _table(raw, start, end, depth + 1), end
    values = []
    while start < end:
        value, start = _value(raw, start, depth + 1)
        values.append(value)
    if start > end:
        raise ValueError("a value is longer than the list that contains it")
    return values, end


# (number of the delivery, redelivered, routing key, properties, body)
Handler: TypeAlias = Callable[[int, bool, str, Properties, bytes], None]


def frame_end(buffer: bytes) -> int | None:
    """Where the frame at the front of the buffer ends; None where it is incomplete."""
    if len(buffer) < _HEAD_BYTES:
        return None
    end: int = _HEAD_BYTES + _FRAME.unpack_from(buffer)[2] + _END_BYTES
    return end if end <= len(buffer) else None


def _date(seconds: int) -> datetime.datetime | int:
    """A date; programs that count milliseconds set some far beyond the last one."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


def split_properties(frame: bytes, handlers: Mapping[int, Handler]) -> tuple[int, Properties, bytes] | None:
    """A header frame of a channel in `handlers`: the channel, the properties, and the frame without them.

    pika ends the connection over a property that it cannot decode, so it gets none of them.
    """
    kind, channel, _ = _FRAME.unpack_from(frame)
    if kind != _HEADER or channel not in handlers or len(frame) < _CONTENT.size + _END_BYTES:
        return None
    _, _, _, method_class, weight, body_bytes, flags = _CONTENT.unpack_from(frame)
    at, more = _CONTENT.size, flags
    while more & 1 and at + 2 < len(frame):  # further flags, for properties that do not exist
        more = int.from_bytes(frame[at : at + 2], "big")
        at += 2
    bare = _CONTENT.pack(_HEADER, channel, _CONTENT.size - _HEAD_BYTES, method_class, weight, body_bytes, 0)
    return channel, Properties(frame, at, flags, len(frame) - _END_BYTES), bare + frame[-_END_BYTES:]


def read_deliveries(buffer: bytes, handlers: Mapping[int, Handler], frame_max_bytes: int) -> tuple[int, int, bool]:
    """Hand out complete deliveries from the front of the buffer.

    Returns the bytes and the frames used, and whether the buffer continues with an incomplete delivery.
    """
    at, end, frames = 0, len(buffer), 0
    while end - at > 11:
        kind, channel, size, method = _FRAME_AND_METHOD.unpack_from(buffer, at)
        if kind != _METHOD or method != _DELIVER or channel not in handlers:
            return at, frames, False
        header = at + _HEAD_BYTES + size + _END_BYTES
        properties = header + _CONTENT.size
        if end < properties:
            return at, frames, True
        _, _, header_bytes, _, _, body_bytes, flags = _CONTENT.unpack_from(buffer, header)
        body = header + _HEAD_BYTES + header_bytes + _END_BYTES
        if body_bytes > frame_max_bytes - _HEAD_BYTES - _END_BYTES or flags & 1:
            return at, frames, False  # several body frames, or more flags than there are properties
        following = body if body_bytes == 0 else body + _HEAD_BYTES + body_bytes + _END_BYTES
        if end < following:
            return at, frames, True
        if body_bytes and _FRAME.unpack_from(buffer, body) != (_BODY, channel, body_bytes):
            return at, frames, False
        field = at + 11
        field += 1 + buffer[field]  # consumer tag
        number, redelivered = _NUMBER.unpack_from(buffer, field)
        field += 9
        field += 1 + buffer[field]  # exchange
        handlers[channel](
            number,
            redelivered != 0,
            buffer[field + 1 : field + 1 + buffer[field]].decode(errors="replace"),
            Properties(buffer, properties, flags, body - _END_BYTES),
            buffer[body + _HEAD_BYTES : following - _END_BYTES] if body_bytes else b"",
        )
        frames += 3 if body_bytes else 2
        at = following
    return at, frames, False
