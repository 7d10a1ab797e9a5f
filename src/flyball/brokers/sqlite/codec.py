"""How a batch of messages is laid out in one SQLite value: by column, so that many are decoded at once.

    header   version, flags, count, width of the ids, length of the extras
    ends     count × u32: where each body ends, counted from the first body
    times    count × f64 (only if a message has an event time; NaN stands for none)
    keys     count × i32 lengths (−1 stands for no key), then the keys (only if a message has a key)
    ids      count × width ASCII characters (the usual case; else they are in the extras)
    extras   JSON: what few messages have: headers, content types, ids of several widths
    bodies   one after the other

A reader that wants bodies alone touches `ends` and `bodies`. Numbers are little-endian.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any

from flyball.brokers.port import BrokerError, HeaderValue, Message, new_id

_HEADER = struct.Struct("<BBHII")
_VERSION = 1
_TIMES, _KEYS = 1, 2
_NO_HEADERS: Mapping[str, HeaderValue] = {}
_PLAIN = frozenset((str, int, float, bool))


def encode(messages: Sequence[Message]) -> bytes:
    """One value that holds all of them, in order.

    >>> sent = [Message(b"a", key=b"k"), Message(b"", headers={"n": b"1"}, event_time_s=2.5)]
    >>> Batch(encode(sent), 2).decode() == (sent, None)
    True
    """
    count = len(messages)
    flags, parts = 0, []
    if any(message.event_time_s is not None for message in messages):
        flags |= _TIMES
        times = [math.nan if message.event_time_s is None else message.event_time_s for message in messages]
        parts.append(struct.pack(f"<{count}d", *times))
    if any(message.key is not None for message in messages):
        flags |= _KEYS
        keys = [message.key for message in messages]
        parts.append(struct.pack(f"<{count}i", *(-1 if key is None else len(key) for key in keys)))
        parts.extend(key for key in keys if key)
    extras: dict[str, object] = {}
    ids = [message.id for message in messages]
    widths, joined = set(map(len, ids)), "".join(ids)
    width = widths.pop() if len(widths) == 1 and joined.isascii() else 0
    if 0 < width < 1 << 16:
        parts.append(joined.encode())
    else:
        width, extras["ids"] = 0, ids
    if any(message.headers for message in messages):
        extras["headers"] = [_plain(message.headers) for message in messages]
    types = [message.content_type for message in messages]
    if types.count(None) < count:
        extras["types"] = types[:1] if len(set(types)) == 1 else types
    extra = json.dumps(extras, separators=(",", ":")).encode() if extras else b""
    bodies = [message.body for message in messages]
    header = _HEADER.pack(_VERSION, flags, width, count, len(extra))
    ends = struct.pack(f"<{count}I", *accumulate(map(len, bodies)))
    return b"".join([header, ends, *parts, extra, *bodies])


class Batch:
    """A decoded batch of `count` messages; ranges of it are made into messages when they are asked for.

    If it is damaged, all of its messages are unreadable; the first one has the whole value as its body.
    """

    def __init__(self, data: bytes, count: int) -> None:
        self.count = count
        self.size_bytes = len(data)
        self._data = data
        self._damage: str | None = None
        if data[:1] > bytes((_VERSION,)):
            raise UnreadableBatch(
                f"a newer Flyball wrote messages in a layout ({data[0]}) that this one does not know: upgrade "
                "this program; it leaves them unread until then"
            )
        try:
            self._read(data)
        except (struct.error, ValueError) as error:
            self._damage = f"its batch is damaged: {error}"

    def _read(self, data: bytes) -> None:
        version, flags, width, count, extra_bytes = _HEADER.unpack_from(data)
        if (version, count) != (_VERSION, self.count):
            raise ValueError(f"it says that it has layout {version} and {count} messages, not {self.count}")
        at = _HEADER.size
        self._ends: tuple[int, ...] = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
        self._times: list[float | None] | None = None
        if flags & _TIMES:
            times = struct.unpack_from(f"<{count}d", data, at)
            self._times = [None if time != time else time for time in times]
            at += 8 * count
        self._keys: list[bytes | None] | None = None
        if flags & _KEYS:
            lengths = struct.unpack_from(f"<{count}i", data, at)
            at += 4 * count
            self._keys = []
            for length in lengths:
                self._keys.append(None if length < 0 else data[at : at + length])
                at += max(length, 0)
        self._width: int = width
        self._ids = data[at : at + width * count].decode("ascii", "replace")
        at += width * count
        self._extra_json = data[at : at + extra_bytes]
        self._extras: Any = None  # parsed when it is wanted
        self._bodies_at = at + extra_bytes
        if self._bodies_at + self._ends[-1] != len(data) or list(self._ends) != sorted(self._ends):
            raise ValueError("the sizes of its parts are not those of the whole")

    def bodies(self, low: int = 0, high: int | None = None) -> list[bytes]:
        high = self.count if high is None else high
        if self._damage is not None:
            return [b"" if at else self._data for at in range(low, high)]
        data, base = self._data, self._bodies_at
        first = base + (self._ends[low - 1] if low else 0)
        ends = [base + end for end in self._ends[low:high]]
        return [data[start:end] for start, end in zip(chain((first,), ends), ends, strict=False)]

    def decode(self, low: int = 0, high: int | None = None) -> tuple[list[Message], str | None]:
        """The messages of a range, and why they are unreadable, if so: then they have bodies, keys and times."""
        high = self.count if high is None else high
        bodies = self.bodies(low, high)
        if self._damage is not None:
            return list(map(Message, bodies)), self._damage
        keys: Iterable[bytes | None] = repeat(None) if self._keys is None else self._keys[low:high]
        times: Iterable[float | None] = repeat(None) if self._times is None else self._times[low:high]
        try:
            if self._extras is None:
                self._extras = json.loads(self._extra_json) if self._extra_json else {}
            extras = self._extras
            headers: Iterable[Mapping[str, HeaderValue]] = repeat(_NO_HEADERS)
            if "headers" in extras:
                headers = list(map(_rich, extras["headers"][low:high]))
            types: Iterable[str | None] = repeat(None)
            if "types" in extras:
                known = extras["types"]
                types = repeat(_text(known[0])) if len(known) == 1 else list(map(_text_or_none, known[low:high]))
            ids = self._id_range(low, high) if self._width else list(map(_text, extras["ids"][low:high]))
            messages = list(map(Message, bodies, ids, keys, headers, times, types))
            if len(messages) != len(bodies):
                raise ValueError(f"they are those of {len(messages)} messages, not of {len(bodies)}")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            ids = self._id_range(low, high) if self._width else [new_id() for _ in bodies]
            messages = list(map(Message, bodies, ids, keys, repeat(_NO_HEADERS), times))
            return messages, f"headers, content types or ids of its batch are damaged: {error}"
        return messages, None

    def _id_range(self, low: int, high: int) -> list[str]:
        joined, width = self._ids, self._width
        return [joined[at : at + width] for at in range(low * width, high * width, width)]


class UnreadableBatch(BrokerError, ValueError):
    """A batch that a newer program wrote."""


def _plain(headers: Mapping[str, HeaderValue]) -> dict[str, object] | None:
    """JSON has no bytes: they become a list of one base64 text, which no other header value looks like."""
    if not headers:
        return None
    return {
        name: [base64.b64encode(value).decode()] if isinstance(value, bytes) else value
        for name, value in headers.items()
    }


def _rich(plain: Mapping[str, Any] | None) -> Mapping[str, HeaderValue]:
    if plain is None:
        return _NO_HEADERS
    return {name: value if type(value) in _PLAIN else _bytes(value) for name, value in plain.items()}


def _bytes(value: Any) -> bytes:
    if not isinstance(value, list):
        raise TypeError(f"a header must be text, a number, true, false or bytes, got {value!r:.60}")
    (text,) = value
    return base64.b64decode(text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not text")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)
