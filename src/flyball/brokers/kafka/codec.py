"""A message as a Kafka record, which plain Kafka programs can write and read.

Body and key are the record's value and key. The rest are headers: `message-id`, `content-type`, `event-time`
(seconds since 1970 as text: the record's own timestamp has only milliseconds, rules retention, and stays the
time of sending), then the message's own headers. Kafka's headers are bytes without a type: text is UTF-8; for
other values `header-types` names the type (i, f, b: number or truth as text; y: bytes), so that they come back as
they were. `producer-sequence` numbers the records of a named producer (`sequences`) and is no part of the
message. A record without `message-id` comes from a foreign program: its partition and offset are its id, and its
timestamp the event time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from flyball.brokers.port import Delivery, HeaderValue, Message

ID, CONTENT_TYPE, EVENT_TIME, TYPES = "message-id", "content-type", "event-time", "header-types"
SEQUENCE = "producer-sequence"

_NO_HEADERS: Mapping[str, HeaderValue] = MappingProxyType({})
_CREATE_TIME = 1  # confluent_kafka.TIMESTAMP_CREATE_TIME
_LETTERS: dict[type, str] = {bool: "b", int: "i", float: "f", bytes: "y"}
_DECODERS: dict[str, Callable[[bytes], HeaderValue]] = {
    "b": lambda raw: raw == b"true",
    "i": int,
    "f": float,
    "y": bytes,
}

Headers = list[tuple[str, str | bytes | None]]


def to_headers(message: Message) -> Headers:
    """The record's headers.

    >>> to_headers(Message(b"", id="7f", headers={"n": 3, "s": "x"}, event_time_s=1.5))
    [('message-id', '7f'), ('event-time', '1.5'), ('n', '3'), ('s', 'x'), ('header-types', '{"n": "i"}')]
    """
    headers: Headers = [(ID, message.id)]
    if message.content_type is not None:
        headers.append((CONTENT_TYPE, message.content_type))
    if message.event_time_s is not None:
        headers.append((EVENT_TIME, repr(message.event_time_s)))
    if message.headers:
        types: dict[str, str] = {}
        for name, value in message.headers.items():
            if isinstance(value, str):
                headers.append((name, value))
                continue
            types[name] = _LETTERS[type(value)]
            headers.append((name, value if isinstance(value, bytes) else _as_text(value)))
        if types:
            headers.append((TYPES, json.dumps(types)))
    return headers


def _as_text(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def to_message(record: Any) -> Message:
    """The message of a record as confluent-kafka hands it out."""
    return _full_message(record, dict(record.headers() or ()))


def to_deliveries(
    records: Iterable[Any], tag: int, ends: dict[tuple[str, int], int], errors: list[Any]
) -> list[Delivery]:
    """First deliveries of records, numbered from `tag`.

    The offset after the last one of each (topic, partition) goes into `ends`; errors
    instead of records go into `errors`. It is the hottest loop of the adapter, so what is the same for a run of
    records is done once a run. Nearly all records have exactly one header, our id; others take the long way.
    """
    deliveries: list[Delivery] = []
    keep = deliveries.append
    channel, run_partition, offset = "", -1, -1
    for record in records:
        if record.error() is not None:
            errors.append(record.error())
            continue
        partition = record.partition()
        if partition != run_partition or record.topic() != channel:
            ends[channel, run_partition] = offset + 1
            channel, run_partition = record.topic(), partition
        offset = record.offset()
        headers = record.headers()
        if headers and len(headers) == 1 and headers[0][0] == ID:
            message = Message(record.value() or b"", headers[0][1].decode(), record.key(), _NO_HEADERS)
        else:
            message = _full_message(record, dict(headers or ()))
        keep(Delivery(message, channel, tag, False, 1, partition, offset))
        tag += 1
    ends[channel, run_partition] = offset + 1
    ends.pop(("", -1), None)
    return deliveries


def _full_message(record: Any, raw: dict[str, bytes | None]) -> Message:
    id, content_type = raw.pop(ID, None), raw.pop(CONTENT_TYPE, None)
    event_time, types = raw.pop(EVENT_TIME, None), raw.pop(TYPES, None)
    raw.pop(SEQUENCE, None)
    happened_s = None if event_time is None else float(event_time)
    if id is None:
        kind, stamp_ms = record.timestamp()
        if happened_s is None and kind == _CREATE_TIME:
            happened_s = stamp_ms / 1000
        id = f"{record.topic()}:{record.partition()}:{record.offset()}".encode()
    letters: dict[str, str] = json.loads(types) if types else {}
    return Message(
        record.value() or b"",
        id.decode(),
        record.key(),
        {name: _value(value, letters.get(name)) for name, value in raw.items()} if raw else _NO_HEADERS,
        happened_s,
        None if content_type is None else content_type.decode(),
    )


def _value(raw: bytes | None, letter: str | None) -> HeaderValue:
    if raw is None:
        return b""
    if letter in _DECODERS:
        return _DECODERS[letter](raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
