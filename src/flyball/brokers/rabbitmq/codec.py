"""A message as AMQP properties and body, and back.

    id            message_id
    body          body
    content type  content_type
    event time    timestamp (whole seconds, as AMQP has it) and, if that loses something, a header
    key           header
    headers       headers; pika cannot encode floats, so they travel as text beside a list of their names

`app_id` marks what Flyball sent: only ids that Flyball made are known to be unique, so only those are used to
recognise repeats. Messages of other programs arrive as they are; without a message_id they get a fresh id.

`PublishFrames` writes the messages of a batch as AMQP frames at once. pika builds three objects a message and
hands three pieces to the operating system, one call each: about 50 µs of the sender's time. All messages of a
batch go to one queue, so the first frame is the same for all; the second holds little; and one write carries
hundreds of messages. A message on the wire (AMQP 0-9-1, section 4.2) is a method frame (basic.publish), a header
frame (body size, which properties follow, the properties) and body frames no longer than the connection's limit. A
frame is

    type: 1 byte | channel: 2 | payload size: 4 | payload | 0xCE
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pika
from pika import data as amqp_data

from flyball.brokers.port import BrokerError, HeaderValue, Message, TooLarge, new_id
from flyball.errors import InvalidValue

APP_ID = "flyball"
_KEY = "x-flyball-key"
_EVENT_TIME = "x-flyball-event-time"
_FLOATS = "x-flyball-floats"
_DELIVERY_COUNT = "x-delivery-count"  # set by quorum queues: earlier deliveries that were not acknowledged
_PERSISTENT = 2
_SHORT_STRING_BYTES = 255
_HEADERS_BYTES = 100_000  # all properties have to fit one frame of at least 128 KiB


class BadMessage(BrokerError, InvalidValue):
    """AMQP cannot carry this message."""


def to_properties(message: Message) -> pika.BasicProperties:
    """The properties of a message; raises `BadMessage` or `TooLarge` if AMQP cannot carry them."""
    headers = None
    long = len(message.id) > 63 or (message.content_type is not None and len(message.content_type) > 63)
    if message.headers or message.key is not None or message.event_time_s is not None or long:
        headers = _headers(message)
    return pika.BasicProperties(
        content_type=message.content_type,
        headers=headers,
        delivery_mode=_PERSISTENT,
        message_id=message.id,
        timestamp=_timestamp(message.event_time_s),
        app_id=APP_ID,
    )


def _timestamp(event_time_s: float | None) -> int | None:
    return int(event_time_s) if event_time_s is not None and event_time_s >= 0 else None


def _headers(message: Message) -> dict[str, Any] | None:
    for what, text in (("id", message.id), ("content type", message.content_type or "")):
        if len(text.encode()) > _SHORT_STRING_BYTES:
            raise BadMessage(
                f"the {what} of message {message.id[:40]!r} takes more than {_SHORT_STRING_BYTES} bytes"
            )
    headers: dict[str, Any] = {}
    floats = []
    size = 0
    for name, value in message.headers.items():
        if isinstance(value, float):
            floats.append(name)
            value = repr(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise BadMessage(f"header {name!r} of message {message.id} is {value}: AMQP carries 64 bits, use text")
        headers[name] = value
        size += len(name) + (len(value) if isinstance(value, str | bytes) else 8) + 6
    if floats:
        headers[_FLOATS] = floats
    if message.key is not None:
        headers[_KEY] = message.key
        size += len(message.key)
    if message.event_time_s is not None and message.event_time_s != _timestamp(message.event_time_s):
        headers[_EVENT_TIME] = repr(message.event_time_s)
    if size > _HEADERS_BYTES:
        raise TooLarge(
            f"key and headers of message {message.id} take {size} bytes, AMQP carries {_HEADERS_BYTES}: "
            "put them into the body"
        )
    return headers or None


def from_wire(properties: Any, body: bytes) -> tuple[Message, int | None]:
    """The message, and how often a quorum queue delivered it before (None: unknown)."""
    raw: dict[str, Any] | None = properties.headers
    key: bytes | None = None
    event_time_s = None if properties.timestamp is None else float(properties.timestamp)
    headers = _NO_HEADERS
    count = None
    if raw:
        count = raw.pop(_DELIVERY_COUNT, None)
        key = raw.pop(_KEY, None)
        exact = raw.pop(_EVENT_TIME, None)
        if exact is not None:
            event_time_s = float(exact)
        for name in raw.pop(_FLOATS, ()):
            raw[name] = float(raw[name])
        if raw:
            headers = {name: value if type(value) in _PLAIN else _plain(value) for name, value in raw.items()}
    id = properties.message_id or new_id()
    return Message(body, id, key, headers, event_time_s, properties.content_type), count


_NO_HEADERS: Mapping[str, HeaderValue] = MappingProxyType({})
_PLAIN = frozenset((str, int, float, bool, bytes))


def _plain(value: object) -> HeaderValue:
    """Headers of other programs may hold dates, decimals, lists and tables; ours hold plain values."""
    return int(value) if isinstance(value, int) else str(value)


_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_BASIC, _PUBLISH = 60, 40
_MANDATORY = 1
_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQH")
_OVERHEAD_BYTES = _FRAME.size + len(_END)

# which bit of the header frame's flags announces which property, in the order in which they are written
_CONTENT_TYPE, _HEADERS_FLAG, _DELIVERY_MODE, _MESSAGE_ID, _TIMESTAMP, _APP_ID = (
    1 << bit for bit in (15, 13, 12, 7, 6, 3)
)


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


class PublishFrames:
    """Frames that publish to one routing key of one exchange on one channel."""

    def __init__(self, channel: int, exchange: str, routing_key: str, frame_max_bytes: int, app_id: str) -> None:
        payload = struct.pack(">HHH", _BASIC, _PUBLISH, 0) + _short(exchange) + _short(routing_key)
        payload += bytes((_MANDATORY,))
        self._channel = channel
        self._method = _FRAME.pack(_METHOD, channel, len(payload)) + payload + _END
        self._app_id = _short(app_id)
        self._body_max_bytes = (frame_max_bytes or 1 << 31) - _OVERHEAD_BYTES

    def append(self, pieces: list[bytes], properties: pika.BasicProperties, body: bytes) -> None:
        """Add the frames of a message, of whose properties only those that `to_properties` sets are written."""
        flags = _DELIVERY_MODE | _MESSAGE_ID | _APP_ID
        before = after = b""
        if properties.content_type is not None:
            flags |= _CONTENT_TYPE
            before = _short(properties.content_type)
        if properties.headers:
            flags |= _HEADERS_FLAG
            table: list[bytes] = []
            amqp_data.encode_table(table, properties.headers)
            before += b"".join(table)
        if properties.timestamp is not None:
            flags |= _TIMESTAMP
            after = struct.pack(">Q", properties.timestamp)
        id = properties.message_id.encode()
        size = len(body)
        payload = b"".join(
            (
                _CONTENT.pack(_BASIC, 0, size, flags),
                before,
                bytes((properties.delivery_mode, len(id))),
                id,
                after,
                self._app_id,
            )
        )
        header = _FRAME.pack(_HEADER, self._channel, len(payload))
        if 0 < size <= self._body_max_bytes:  # the everyday case: one body frame
            frame = _FRAME.pack(_BODY, self._channel, size)
            pieces += (self._method, header, payload, _END, frame, body, _END)
            return
        pieces += (self._method, header, payload, _END)
        for start in range(0, size, self._body_max_bytes):
            part = body[start : start + self._body_max_bytes]
            pieces += (_FRAME.pack(_BODY, self._channel, len(part)), part, _END)
