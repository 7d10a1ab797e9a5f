"""What a program publishes and receives: the message, the same for every broker and for the store.

`check_message` says what all brokers can carry; what it refuses would be lost or changed by one of them, or block
the messages behind it.
"""

from __future__ import annotations

import datetime
import hashlib
import numbers
import os
import random
import re
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from flyball.errors import InvalidValue

HeaderValue: TypeAlias = str | int | float | bool | bytes

_NO_HEADERS: Mapping[str, HeaderValue] = MappingProxyType({})

# Seeded by the system once, not asked for every id: that would cost more than all else a message needs. Ids are
# no secrets, they only have to differ; so a forked process begins a sequence of its own.
_ids = random.Random()
os.register_at_fork(after_in_child=_ids.seed)


def new_id() -> str:
    """A message id: 32 hexadecimal digits, unique without coordination."""
    return f"{_ids.getrandbits(128):032x}"


@dataclass(slots=True)
class Message:
    """What a publisher sends and a consumer receives.

    `id` stays the same however often the message is sent or delivered; it is what repeats are recognised by,
    within a channel. `key` chooses the partition of a log and is any bytes. `event_time_s` is when the thing
    happened, in seconds since 1970, which may be long before it was sent.

    Not frozen, as that triples the time to build one, but not to be changed once it was sent or received: others
    may hold the same object. `dataclasses.replace` makes a changed one.
    """

    body: bytes
    id: str = field(default_factory=new_id)
    key: bytes | None = None
    headers: Mapping[str, HeaderValue] = field(default_factory=lambda: _NO_HEADERS)
    event_time_s: float | None = None
    content_type: str | None = None


# --- what all brokers can carry ----------------------------------------------------------------------------------

MAX_TEXT_BYTES = 255
"""Of an id, a content type and the name of a header: AMQP's short strings."""
MAX_HEADERS_BYTES = 100_000
"""Of key and headers together: AMQP carries them in one frame, of 128 KiB by default."""
MAX_TIME_S = 2.0**53
"""Further from 1970 a float no longer counts seconds one by one, and milliseconds exceed 64 bits."""
RESERVED_HEADERS = frozenset(
    (
        *("message-id", "content-type", "event-time", "header-types", "producer-sequence"),  # Kafka
        *("x-flyball-key", "x-flyball-event-time", "x-flyball-floats", "x-delivery-count"),  # RabbitMQ's queues
        *("flyball-key", "flyball-event-time"),  # RabbitMQ's streams
        *("CC", "BCC"),  # RabbitMQ closes the channel, unless they are lists of queues
    )
)
"""Names of headers that an adapter or a broker uses itself."""

_MAPPINGS = frozenset((dict, MappingProxyType))
_HEADER_OVERHEAD_BYTES = 40  # types, lengths, and a number as text
_LEAST, _LARGEST = -(2**63), 2**63 - 1
_MAX_NAMES = 1000
_name_bytes: dict[str, int] = {}
"""Names of headers that were checked, and the bytes that a header of this name takes beside its value."""
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9_\-@:]+(\.[A-Za-z0-9_\-@:]+)*")


def check_message(message: Message) -> Message:
    """Return the message if all brokers can carry it, else raise `InvalidValue`.

    Numbers of numpy, enumerations and subclasses of str and bytes become plain values, in a copy of the message.

    >>> check_message(Message(b"", headers={"n": float("nan")}))
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: header 'n' of a message must be a finite number, got nan
    """
    try:
        id, key, event_time_s, content_type = message.id, message.key, message.event_time_s, message.content_type
        if (  # the everyday case, at a tenth of the cost
            type(message.body) is bytes
            and type(id) is str
            and id.isascii()
            and 0 < len(id) <= MAX_TEXT_BYTES
            and (key is None or (type(key) is bytes and len(key) <= MAX_HEADERS_BYTES))
            and type(message.headers) in _MAPPINGS
            and not message.headers
            and (
                event_time_s is None or (type(event_time_s) is float and -MAX_TIME_S <= event_time_s <= MAX_TIME_S)
            )
            and (
                content_type is None
                or (type(content_type) is str and content_type.isascii() and len(content_type) <= MAX_TEXT_BYTES)
            )
        ):
            return message
        fields = message.body, id, key, message.headers, event_time_s, content_type
    except AttributeError:
        _refuse("", "a Message", message)
    return _check_fields(message, *fields)


def _check_fields(
    message: Message, body: Any, id: Any, key: Any, headers: Any, event_time_s: Any, content_type: Any
) -> Message:
    if isinstance(body, Message):
        raise InvalidValue(
            "the body of a message must be bytes, got a whole Message: pass messages to publish_many([message])"
        )
    plain_body = _check_bytes("body", body)
    plain_id = _check_short_text("the id", id)
    if not plain_id:
        raise InvalidValue("the id of a message must not be empty")
    plain_key = None if key is None else _check_bytes("key", key, "bytes | None")
    plain_headers, size = _check_headers(headers)
    size += len(plain_key or b"")
    if size > MAX_HEADERS_BYTES:
        raise InvalidValue(
            f"key and headers of a message must take at most {MAX_HEADERS_BYTES} bytes, got {size}: "
            "put them into the body"
        )
    plain_time_s = None if event_time_s is None else _check_time(event_time_s)
    plain_type = None if content_type is None else _check_short_text("content_type", content_type, "str | None")
    if (
        plain_body is body
        and plain_id is id
        and plain_key is key
        and plain_headers is headers
        and plain_time_s is event_time_s
        and plain_type is content_type
    ):
        return message
    return Message(plain_body, plain_id, plain_key, plain_headers, plain_time_s, plain_type)


def _check_bytes(what: str, value: Any, kinds: str = "bytes") -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes):
        _refuse(f"the {what} of ", kinds, value)
    return b"".join((value,))


def _check_text(what: str, value: Any, kinds: str = "str") -> str:
    if not isinstance(value, str):
        _refuse(f"{what} of ", kinds, value)
    text = value if type(value) is str else str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidValue(
                f"{what} of a message must be text that UTF-8 can encode, got {reprlib.repr(text)}: "
                "pass what is not text as bytes"
            ) from None
    return text


def _check_short_text(what: str, value: Any, kinds: str = "str") -> str:
    text = _check_text(what, value, kinds)
    size = _encoded_bytes(text)
    if size > MAX_TEXT_BYTES:
        raise InvalidValue(
            f"{what} of a message must take at most {MAX_TEXT_BYTES} bytes, got {size} in {reprlib.repr(text)}"
        )
    return text


def _check_time(value: Any) -> float:
    if isinstance(value, datetime.date):
        raise InvalidValue(
            f"event_time_s of a message must be seconds since 1970, got {type(value).__name__} {value!s:.40}: "
            "pass datetime.timestamp()"
        )
    if not _is_real(value):
        _refuse("event_time_s of ", "a number of seconds since 1970", value)
    number = value if isinstance(value, int) else float(value)  # an integer may be too large for a float
    if not -MAX_TIME_S <= number <= MAX_TIME_S:  # nor is NaN
        raise InvalidValue(
            f"event_time_s of a message must be finite and at most 2**53 seconds from 1970, got {_number(number)}"
        )
    return float(number)


def _check_headers(headers: Any) -> tuple[Mapping[str, HeaderValue], int]:
    """The headers with plain names and values, and how many bytes they take at most."""
    if type(headers) in _MAPPINGS:  # the everyday case: names that came before, plain values
        size = 0
        for name, value in headers.items():
            kind, name_bytes = type(value), _name_bytes.get(name) if type(name) is str else None
            if name_bytes is None:
                break
            if (kind is str and value.isascii()) or kind is bytes:
                size += name_bytes + len(value)
            elif (
                kind is bool
                or (kind is int and _LEAST <= value <= _LARGEST)
                or (kind is float and isfinite(value))
            ):
                size += name_bytes
            else:
                break
        else:
            return headers, size
    elif not isinstance(headers, Mapping):
        _refuse("the headers of ", "a mapping", headers)
    size = 0
    plain: dict[str, HeaderValue] = {}
    same = True
    for name, value in headers.items():
        plain_name, plain_value = _check_header_name(name), _check_header(name, value)
        same = same and plain_name is name and plain_value is value
        plain[plain_name] = plain_value
        # The names of some numbers are written twice.
        name_bytes = 2 * _encoded_bytes(plain_name) + _HEADER_OVERHEAD_BYTES
        if len(_name_bytes) < _MAX_NAMES:
            _name_bytes[plain_name] = name_bytes
        size += name_bytes
        if isinstance(plain_value, str):
            size += _encoded_bytes(plain_value)
        elif isinstance(plain_value, bytes):
            size += len(plain_value)
    return (headers if same else plain), size


def _check_header_name(name: Any) -> str:
    text: str = name
    if type(name) is not str or not name.isascii() or len(name) > MAX_TEXT_BYTES:
        text = _check_short_text("the name of a header", name)
    if text in RESERVED_HEADERS:
        raise InvalidValue(f"a header of a message must not be named {text!r}: brokers use that name themselves")
    if not text or "\0" in text:
        raise InvalidValue(f"the name of a header must be text without NUL and not empty, got {text!r}")
    return text


def _check_header(name: str, value: Any) -> HeaderValue:
    kind = type(value)
    if kind is bytes or kind is bool or (kind is str and value.isascii()):
        return value  # type: ignore[no-any-return]  # one of these
    if kind is int and _LEAST <= value <= _LARGEST:
        return value  # type: ignore[no-any-return]
    if kind is float and isfinite(value):
        return value  # type: ignore[no-any-return]
    what = f"header {name!r}"
    if isinstance(value, str):
        return _check_text(what, value)
    if isinstance(value, bytes):
        return b"".join((value,))
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    if not _is_real(value):
        _refuse(f"{what} of ", "str | int | float | bool | bytes", value)
    if isinstance(value, numbers.Integral):
        integer = int(value)
        if not _LEAST <= integer <= _LARGEST:
            raise InvalidValue(
                f"{what} of a message must be an integer from -2**63 to 2**63 - 1, got {_number(integer)}: "
                "pass it as text"
            )
        return integer
    number = float(value)
    if not isfinite(number):
        raise InvalidValue(f"{what} of a message must be a finite number, got {number}")
    return number


def _is_real(value: Any) -> bool:
    """Whether an integer or a float can stand for it; numpy counts spans of time among the integers."""
    if isinstance(value, float | int):
        return True
    return (
        isinstance(value, numbers.Real)
        and (isinstance(value, numbers.Integral) or not isinstance(value, numbers.Rational))
        and type(value).__name__ != "timedelta64"
    )


def _encoded_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _number(value: float) -> str:
    """A number as text; Python does not print an integer of thousands of digits."""
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else str(value)


def _refuse(what: str, kinds: str, value: object) -> NoReturn:
    try:
        text = f" {reprlib.repr(value)}"
    except ValueError:  # an integer of thousands of digits
        text = ""
    raise InvalidValue(f"{what}a message must be {kinds}, got {type(value).__name__}{text}")


def fit_message(message: Message) -> Message:
    """The message as far as all brokers can carry it: for what another program wrote and is passed on.

    Headers and other fields that do not fit are left out, an id is replaced by its hash; the body is kept.

    >>> fit_message(Message(b"x", id="a", headers={"n": 2**63, "city": "lyon"}, event_time_s=float("inf")))
    Message(body=b'x', id='a', key=None, headers={'city': 'lyon'}, event_time_s=None, content_type=None)
    """
    try:
        return check_message(message)
    except InvalidValue:
        fit = Message(message.body, message.id)
    try:
        check_message(fit)
    except InvalidValue:
        fit.id = hashlib.sha256(message.id.encode(errors="surrogatepass")).hexdigest()
    for name in ("key", "event_time_s", "content_type"):
        with suppress(InvalidValue):
            fit = check_message(replace(fit, **{name: getattr(message, name)}))
    headers: dict[str, HeaderValue] = {}
    left_bytes = MAX_HEADERS_BYTES - len(fit.key or b"")
    for header in message.headers.items():
        with suppress(InvalidValue):
            plain, size = _check_headers(dict((header,)))
            if size <= left_bytes:
                headers.update(plain)
                left_bytes -= size
    return replace(fit, headers=headers)


def check_name(channel: str) -> str:
    """Return the name of a channel, or raise `InvalidValue` if some broker could not carry it."""
    if not isinstance(channel, str):
        raise InvalidValue(
            f"the name of a channel must be str, got {type(channel).__name__} {reprlib.repr(channel)}"
        )
    if len(channel) > 200 or not _CHANNEL_NAME.fullmatch(channel):
        raise InvalidValue(
            f"invalid channel name {channel[:80]!r}: use letters, digits, _ - @ : and dots between words, "
            "at most 200 characters"
        )
    return channel
