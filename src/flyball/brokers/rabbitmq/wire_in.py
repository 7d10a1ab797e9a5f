"""Reads deliveries straight from the bytes that arrived.

pika makes nine objects of a delivery and passes each frame through four layers of callbacks: most of what
consuming costs. A delivery whose body is one frame is read here in one go as soon as it is complete, and handed
to its receiver; everything else (large bodies, replies, errors, heartbeats) goes pika's way as before. It also
means that what arrives while a consumer is being cancelled is kept in order, where pika would send it back.

On the wire a delivery is a method frame (basic.deliver: consumer, number, redelivered, exchange, routing key), a
header frame (body size, which properties follow, the properties) and a body frame; see `rabbitmq_frames`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from pika import data as amqp_data
from pika.adapters.asyncio_connection import AsyncioConnection

_FRAME = struct.Struct(">BHI")
_FRAME_AND_METHOD = struct.Struct(">BHII")
_CONTENT = struct.Struct(">BHIHHQH")
_NUMBER = struct.Struct(">QB")
_METHOD, _HEADER, _BODY = 1, 2, 3
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


class DeliveringConnection(AsyncioConnection):  # type: ignore[misc]  # pika has no types here
    """pika's connection with a shorter way for deliveries to the channels named in `handlers`."""

    _frame_buffer: bytes

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.handlers: dict[int, Handler] = {}
        super().__init__(*arguments, **options)

    def _on_data_available(self, data_in: bytes) -> None:
        waiting: bytes = self._frame_buffer
        buffer = waiting + data_in
        while buffer:
            done, wait = self._read_deliveries(buffer)
            self.bytes_received += done
            self._frame_buffer = buffer = buffer[done:]
            if wait:
                return
            following = self._after_a_frame(buffer) if self.handlers else None
            if following is None:
                super()._on_data_available(b"")
                return
            # Only this one goes pika's way: behind the answer to a question, thousands of deliveries may wait.
            self._frame_buffer = buffer[:following]
            super()._on_data_available(b"")
            self._frame_buffer = buffer = self._frame_buffer + buffer[following:]

    @staticmethod
    def _after_a_frame(buffer: bytes) -> int | None:
        """Where the frame at the front ends; None where it is not all there."""
        if len(buffer) < _HEAD_BYTES:
            return None
        following: int = _HEAD_BYTES + _FRAME.unpack_from(buffer)[2] + _END_BYTES
        return following if following <= len(buffer) else None

    def _read_deliveries(self, buffer: bytes) -> tuple[int, bool]:
        """Hand out complete deliveries from the front: bytes used, and whether the next one is not all there."""
        at, end, handlers = 0, len(buffer), self.handlers
        while end - at > 11:
            kind, channel, size, method = _FRAME_AND_METHOD.unpack_from(buffer, at)
            if kind != _METHOD or method != _DELIVER or channel not in handlers:
                return at, False
            header = at + _HEAD_BYTES + size + _END_BYTES
            properties = header + _CONTENT.size
            if end < properties:
                return at, True
            _, _, header_bytes, _, _, body_bytes, flags = _CONTENT.unpack_from(buffer, header)
            body = header + _HEAD_BYTES + header_bytes + _END_BYTES
            if body_bytes > self.params.frame_max - _HEAD_BYTES - _END_BYTES or flags & 1:
                return at, False  # several body frames, or more flags than there are properties
            following = body if body_bytes == 0 else body + _HEAD_BYTES + body_bytes + _END_BYTES
            if end < following:
                return at, True
            if body_bytes and _FRAME.unpack_from(buffer, body) != (_BODY, channel, body_bytes):
                return at, False
            place = at + 11
            place += 1 + buffer[place]  # consumer tag
            number, redelivered = _NUMBER.unpack_from(buffer, place)
            place += 9
            place += 1 + buffer[place]  # exchange
            handlers[channel](
                number,
                redelivered != 0,
                buffer[place + 1 : place + 1 + buffer[place]].decode(),
                Properties(buffer, properties, flags),
                buffer[body + _HEAD_BYTES : following - _END_BYTES] if body_bytes else b"",
            )
            self.frames_received += 3 if body_bytes else 2
            at = following
        return at, False
