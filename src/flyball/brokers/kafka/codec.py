"""A message as a Kafka record, which plain Kafka programs can write and read.

Body and key are the record's value and key. The rest are headers: `message-id`, `content-type`, `event-time`
(seconds since 1970 as text: the record's own timestamp has only milliseconds, rules retention, and stays the
time of sending), then the message's own headers. Kafka's headers are bytes without a type: text is UTF-8; for
other values `header-types` names the type (i, f, b: number or truth as text; y: bytes), so that they come back as
they were. `producer-sequence` numbers the records of a named producer (`sequences`) and is no part of the
message. A record without `message-id` comes from a foreign program: its partition and offset are its id, and its
timestamp the event time. A record that claims to be ours and cannot be decoded is delivered as unreadable.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from flyball.brokers.port import Delivery, HeaderValue, Message, Record
from flyball.message import MAX_TIME_S

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

headers_of: Callable[[Any], list[tuple[str, bytes | None]] | None] = operator.methodcaller("headers")
"""The headers of a record.

On a name that is not UTF-8 the client fails in a way that the interpreter notices here, while `record.headers()`
may crash it in a loop; so may a second call for the same record.
"""


def to_headers(message: Message) -> Headers:
    """The record's headers, as bytes: the client cuts text off at the character NUL.

    >>> to_headers(Message(b"", id="7f", headers={"n": 3, "s": "x"}, event_time_s=1.5))
    [('message-id', b'7f'), ('event-time', b'1.5'), ('n', b'3'), ('s', b'x'), ('header-types', b'{"n": "i"}')]
    """
    headers: Headers = [(ID, message.id.encode())]
    if message.content_type is not None:
        headers.append((CONTENT_TYPE, message.content_type.encode()))
    if message.event_time_s is not None:
        headers.append((EVENT_TIME, repr(message.event_time_s).encode()))
    if message.headers:
        types: dict[str, str] = {}
        for name, value in message.headers.items():
            if isinstance(value, str):
                headers.append((name, value.encode()))
                continue
            types[name] = _LETTERS[type(value)]
            headers.append((name, value if isinstance(value, bytes) else _as_text(value).encode()))
        if types:
            headers.append((TYPES, json.dumps(types).encode()))
    return headers


def _as_text(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def to_record(record: Any) -> Record:
    """A record as confluent-kafka hands it out, for `Broker.read`."""
    try:
        message, unreadable = _decode(record, headers_of(record))
    except Exception as error:  # noqa: BLE001  as below
        message, unreadable = _undecoded(record, error)
    return Record(record.partition(), record.offset(), message, record.timestamp()[1] / 1000, unreadable)


def to_deliveries(
    records: list[Any], tag: int, ends: dict[tuple[str, int], int], errors: list[Any]
) -> list[Delivery]:
    """First deliveries of records, numbered from `tag`; the list of records is emptied.

    The offset after the last one of each (topic, partition) goes into `ends`; errors
    instead of records go into `errors`. It is the hottest loop of the adapter, so what is the same for a run of
    records is done once a run. Nearly all records have exactly one header, our id; others take the long way.
    A record is released as soon as it is decoded: with its list of headers it is three objects that the garbage
    collector would look at, and it runs the more often the more of them there are.

    Nothing is raised for a record that cannot be decoded: the client has handed out all of them.
    """
    deliveries: list[Delivery] = []
    keep = deliveries.append
    channel, run_partition, offset = "", -1, -1
    records.reverse()
    while records:
        record = records.pop()
        if record.error() is not None:
            errors.append(record.error())
            continue
        partition = record.partition()
        if partition != run_partition or record.topic() != channel:
            ends[channel, run_partition] = offset + 1
            channel, run_partition = record.topic(), partition
        offset = record.offset()
        try:
            headers = headers_of(record)
            if headers and len(headers) == 1 and headers[0][0] == ID and headers[0][1]:
                try:
                    id = headers[0][1].decode()
                except UnicodeDecodeError:
                    id = headers[0][1].hex()
                message, unreadable = Message(record.value() or b"", id, record.key(), _NO_HEADERS), None
            else:
                message, unreadable = _decode(record, headers)
        except Exception as error:  # noqa: BLE001  the client fails on a header's name that is not UTF-8, too
            message, unreadable = _undecoded(record, error)
        keep(Delivery(message, channel, tag, False, 1, partition, offset, unreadable))
        tag += 1
    ends[channel, run_partition] = offset + 1
    ends.pop(("", -1), None)
    return deliveries


def _undecoded(record: Any, error: Exception) -> tuple[Message, str]:
    reason = f"it cannot be decoded: {error.__cause__ or error!s:.100}"
    return Message(record.value() or b"", _position(record), record.key()), reason


def _decode(record: Any, all_headers: list[tuple[str, bytes | None]] | None) -> tuple[Message, str | None]:
    """The message of a record, and why it is unreadable, if so.

    What a foreign record (without `message-id`) calls `event-time` and so on may mean anything: what cannot be
    decoded is one of its headers. A record with an id is ours, or claims to be.
    """
    raw: dict[str, bytes | None] = dict(all_headers or ())
    raw.pop(SEQUENCE, None)
    id = raw.pop(ID, None)
    fields: dict[str, Any] = {}
    unreadable = None
    for name, decode in _OWN_HEADERS:
        value = raw.get(name)
        if value is None:
            continue
        try:
            fields[name] = decode(value)
        except ValueError as error:
            if id:
                unreadable = f"header {name} {error}, got {value!r:.60}"
        else:
            del raw[name]
    headers, types = _NO_HEADERS, fields.get(TYPES, _NO_TYPES)
    if raw:
        try:
            headers = {name: _value(value, types.get(name)) for name, value in raw.items()}
        except ValueError as error:
            headers = {name: _value(value, None) for name, value in raw.items()}
            unreadable = f"a header is not of the type that {TYPES} says: {error!s:.100}"
    event_time_s = fields.get(EVENT_TIME)
    if not id and event_time_s is None:
        kind, stamp_ms = record.timestamp()
        if kind == _CREATE_TIME and 0 <= stamp_ms <= 1000 * MAX_TIME_S:
            event_time_s = stamp_ms / 1000
    message = Message(
        record.value() or b"", _id(id, record), record.key(), headers, event_time_s, fields.get(CONTENT_TYPE)
    )
    return message, unreadable


def _id(raw: bytes | None, record: Any) -> str:
    if not raw:
        return _position(record)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.hex()  # a binary UUID, say


def _position(record: Any) -> str:
    return f"{record.topic()}:{record.partition()}:{record.offset()}"


def _event_time(raw: bytes) -> float:
    try:
        time_s = float(raw)
    except ValueError:
        raise ValueError("must be a number of seconds") from None
    if not -MAX_TIME_S <= time_s <= MAX_TIME_S:
        raise ValueError("must be at most 2**53 seconds from 1970")
    return time_s


def _content_type(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ValueError("must be text") from None


def _types(raw: bytes) -> Mapping[str, str]:
    try:
        types = json.loads(raw)
    except (ValueError, RecursionError):
        types = None
    if not isinstance(types, dict) or not all(isinstance(letter, str) for letter in types.values()):
        raise ValueError("must be a JSON object of letters")
    return types


_NO_TYPES: Mapping[str, str] = MappingProxyType({})
_OWN_HEADERS: tuple[tuple[str, Callable[[bytes], object]], ...] = (
    (CONTENT_TYPE, _content_type),
    (EVENT_TIME, _event_time),
    (TYPES, _types),
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
