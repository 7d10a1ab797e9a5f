"""Reads deliveries straight from the bytes that arrived.

A delivery whose body is one frame is read in one go as soon as it is complete, and handed to its receiver. So what
arrives while a consumer is being cancelled is kept in order, where pika would send it back.

On the wire a delivery is a method frame (basic.deliver: consumer, number, redelivered, exchange, routing key), a
header frame (body size, which properties follow, the properties) and a body frame; see `codec`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from pika import data as amqp_data

_FRAME = struct.Struct(">BHI")
_FRAME_AND_METHOD = struct.Struct(">BHII")
_CONTENT = struct.Struct(">BHIHHQH")
_NUMBER = struct.Struct(">QB")
_METHOD, _BODY = 1, 3
_DELIVER = 60 << 16 | 60
_HEAD_BYTES, _END_BYTES = 7, 1
_LONG = struct.Struct(">I")
_FIXED = {
    "t": struct.Struct(">?"),
    "I": struct.Struct(">i"),
    "l": struct.Struct(">q"),
    "L": struct.Struct(">q"),
    "d": struct.Struct(">d"),
    "f": struct.Struct(">f"),
}
_FIXED_BY_CODE = {ord(code): layout for code, layout in _FIXED.items()}
_TEXT, _BYTES = ord("S"), ord("x")


class Properties:
    """Those properties of a message that Flyball reads."""

    __slots__ = ("app_id", "content_type", "headers", "message_id", "timestamp")

    def __init__(self, raw: bytes, at: int, flags: int) -> None:
        self.content_type = self.headers = self.message_id = self.timestamp = self.app_id = None
        if flags & 0x8000:
            self.content_type, at = _short(raw, at)
        if flags & 0x4000:  # content encoding
            at += 1 + raw[at]
        if flags & 0x2000:
            self.headers, at = _table(raw, at)
        if flags & 0x1000:  # delivery mode
            at += 1
        if flags & 0x0800:  # priority
            at += 1
        for bit in (0x0400, 0x0200, 0x0100):  # correlation id, reply to, expiration
            if flags & bit:
                at += 1 + raw[at]
        if flags & 0x0080:
            self.message_id, at = _short(raw, at)
        if flags & 0x0040:
            self.timestamp, at = int.from_bytes(raw[at : at + 8], "big"), at + 8
        for bit in (0x0020, 0x0010):  # type, user id
            if flags & bit:
                at += 1 + raw[at]
        if flags & 0x0008:
            self.app_id, at = _short(raw, at)


def _short(raw: bytes, at: int) -> Any:
    end = at + 1 + raw[at]
    return raw[at + 1 : end].decode(errors="replace"), end


def _table(raw: bytes, at: int) -> Any:
    end = at + 4 + _LONG.unpack_from(raw, at)[0]
    at += 4
    table: dict[str, Any] = {}
    while at < end:
        name, at = _short(raw, at)
        code = raw[at]
        if code in (_TEXT, _BYTES):
            start = at + 5
            at = start + _LONG.unpack_from(raw, at + 1)[0]
            value: Any = raw[start:at]
            if code == _TEXT:
                with suppress(UnicodeDecodeError):  # another program's idea of text
                    value = value.decode()
        elif (layout := _FIXED_BY_CODE.get(code)) is not None:
            (value,) = layout.unpack_from(raw, at + 1)
            at += 1 + layout.size
        else:
            value, at = amqp_data.decode_value(raw, at)
        table[name] = value
    return table, end


# (number of the delivery, redelivered, routing key, properties, body)
Handler: TypeAlias = Callable[[int, bool, str, Properties, bytes], None]


def frame_end(buffer: bytes) -> int | None:
    """Where the frame at the front of the buffer ends; None where it is incomplete."""
    if len(buffer) < _HEAD_BYTES:
        return None
    end: int = _HEAD_BYTES + _FRAME.unpack_from(buffer)[2] + _END_BYTES
    return end if end <= len(buffer) else None


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
            buffer[field + 1 : field + 1 + buffer[field]].decode(),
            Properties(buffer, properties, flags),
            buffer[body + _HEAD_BYTES : following - _END_BYTES] if body_bytes else b"",
        )
        frames += 3 if body_bytes else 2
        at = following
    return at, frames, False
