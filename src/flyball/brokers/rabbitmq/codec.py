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

from flyball.brokers.port import HeaderValue, Message, TooLarge, new_id
from flyball.message import MAX_TIME_S

APP_ID = "flyball"
_KEY = "x-flyball-key"
_EVENT_TIME = "x-flyball-event-time"
_FLOATS = "x-flyball-floats"
_DELIVERY_COUNT = "x-delivery-count"  # set by quorum queues: earlier deliveries that were not acknowledged
_ACQUIRED_COUNT = "x-acquired-count"  # the same since RabbitMQ 4.3, whose delivery count leaves out some of them
_PERSISTENT = 2


def to_properties(message: Message) -> pika.BasicProperties:
    """The properties of a message that `check_message` accepts."""
    headers = None
    if message.headers or message.key is not None or message.event_time_s is not None:
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
    headers: dict[str, Any] = {}
    floats = []
    for name, value in message.headers.items():
        if isinstance(value, float):
            floats.append(name)
            value = repr(value)
        headers[name] = value
    if floats:
        headers[_FLOATS] = floats
    if message.key is not None:
        headers[_KEY] = message.key
    if message.event_time_s is not None and message.event_time_s != _timestamp(message.event_time_s):
        headers[_EVENT_TIME] = repr(message.event_time_s)
    return headers or None


def from_wire(properties: Any, body: bytes) -> tuple[Message, int | None, str | None]:
    """The message, how often a quorum queue delivered it before (None: unknown), and why it is unreadable."""
    raw: dict[str, Any] | None = properties.headers
    key: bytes | None = None
    event_time_s = None
    headers = _NO_HEADERS
    count = unreadable = None
    try:
        if properties.timestamp is not None:
            event_time_s = _time("timestamp", properties.timestamp)
        if raw:
            count = raw.pop(_DELIVERY_COUNT, None)
            count = raw.pop(_ACQUIRED_COUNT, count)
            key = raw.pop(_KEY, None)
            exact = raw.pop(_EVENT_TIME, None)
            floats = raw.pop(_FLOATS, None)
            if type(count) is not int:
                count = None
            if key is not None and type(key) is not bytes:
                key = _key(key)
            if exact is not None:
                event_time_s = _time(_EVENT_TIME, exact)
            if floats is not None:
                _restore_floats(raw, floats)
    except ValueError as error:
        unreadable = str(error)
    if raw:
        headers = {name: value if type(value) in _PLAIN else _plain(value) for name, value in raw.items()}
    id = properties.message_id or new_id()
    return Message(body, id, key, headers, event_time_s, properties.content_type), count, unreadable


_NO_HEADERS: Mapping[str, HeaderValue] = MappingProxyType({})
_PLAIN = frozenset((str, int, float, bool, bytes))


def _key(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    raise ValueError(f"header {_KEY} must be bytes, got {value!r:.60}")


def _time(name: str, value: Any) -> float:
    """An event time, which other programs may have set as well."""
    try:
        time_s = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number of seconds, got {value!r:.60}") from None
    if not -MAX_TIME_S <= time_s <= MAX_TIME_S:
        raise ValueError(f"{name} must be at most 2**53 seconds from 1970, got {value!r:.60}")
    return time_s


def _restore_floats(headers: dict[str, Any], names: Any) -> None:
    """Make numbers of the headers that travelled as text."""
    try:
        for name in names:
            headers[name] = float(headers[name])
    except (TypeError, ValueError, KeyError):
        raise ValueError(f"header {_FLOATS} must list headers that are numbers, got {names!r:.60}") from None


def _plain(value: object) -> HeaderValue:
    """Headers of other programs may hold dates, decimals, lists, tables and nothing; ours hold plain values."""
    if value is None:
        return b""
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
        """Add the frames of a message, of whose properties only those that `to_properties` sets are written.

        Properties are one frame: where the server allows shorter frames than most do, they may be `TooLarge`.
        """
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
        if len(payload) > self._body_max_bytes:
            raise TooLarge(
                f"key and headers of message {properties.message_id} take {len(payload)} bytes, this server "
                f"accepts {self._body_max_bytes}: put them into the body"
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
