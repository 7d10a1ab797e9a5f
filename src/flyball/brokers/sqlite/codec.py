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

from flyball.brokers.port import HeaderValue, Message

_HEADER = struct.Struct("<BBHII")
_VERSION = 1
_TIMES, _KEYS = 1, 2
_NO_HEADERS: Mapping[str, HeaderValue] = {}


def encode(messages: Sequence[Message]) -> bytes:
    """One value that holds all of them, in order.

    >>> sent = [Message(b"a", key=b"k"), Message(b"", headers={"n": b"1"}, event_time_s=2.5)]
    >>> Batch(encode(sent)).messages() == sent
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
    if any(types):
        extras["types"] = types[:1] if len(set(types)) == 1 else types
    extra = json.dumps(extras, separators=(",", ":")).encode() if extras else b""
    bodies = [message.body for message in messages]
    header = _HEADER.pack(_VERSION, flags, width, count, len(extra))
    ends = struct.pack(f"<{count}I", *accumulate(map(len, bodies)))
    return b"".join([header, ends, *parts, extra, *bodies])


class Batch:
    """A decoded batch; ranges of it are made into messages when they are asked for."""

    def __init__(self, data: bytes) -> None:
        version, flags, width, count, extra_bytes = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"batch layout {version} is newer than this program")
        self.count: int = count
        self.size_bytes = len(data)
        self._data = data
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
        self._ids = data[at : at + width * count].decode("ascii")
        at += width * count
        self._extras = json.loads(data[at : at + extra_bytes]) if extra_bytes else {}
        self._bodies_at = at + extra_bytes

    def bodies(self, low: int = 0, high: int | None = None) -> list[bytes]:
        high = self.count if high is None else high
        data, base = self._data, self._bodies_at
        first = base + (self._ends[low - 1] if low else 0)
        ends = [base + end for end in self._ends[low:high]]
        return [data[start:end] for start, end in zip(chain((first,), ends), ends, strict=False)]

    def messages(self, low: int = 0, high: int | None = None) -> list[Message]:
        high = self.count if high is None else high
        bodies = self.bodies(low, high)
        keys: Iterable[bytes | None] = repeat(None) if self._keys is None else self._keys[low:high]
        times: Iterable[float | None] = repeat(None) if self._times is None else self._times[low:high]
        headers: Iterable[Mapping[str, HeaderValue]] = repeat(_NO_HEADERS)
        if "headers" in self._extras:
            headers = [_rich(plain) for plain in self._extras["headers"][low:high]]
        types: Iterable[str | None] = repeat(None)
        if "types" in self._extras:
            known = self._extras["types"]
            types = repeat(known[0]) if len(known) == 1 else known[low:high]
        ids = self._id_range(low, high)
        return list(map(Message, bodies, ids, keys, headers, times, types))

    def _id_range(self, low: int, high: int) -> list[str]:
        if not self._width:
            ids: list[str] = self._extras["ids"][low:high]
            return ids
        joined, width = self._ids, self._width
        return [joined[at : at + width] for at in range(low * width, high * width, width)]


def _plain(headers: Mapping[str, HeaderValue]) -> dict[str, object] | None:
    """JSON has no bytes: they become a list of one base64 text, which no other header value looks like."""
    if not headers:
        return None
    return {
        name: [base64.b64encode(value).decode()] if isinstance(value, bytes) else value
        for name, value in headers.items()
    }


def _rich(plain: Mapping[str, object] | None) -> Mapping[str, HeaderValue]:
    if plain is None:
        return _NO_HEADERS
    return {
        name: base64.b64decode(value[0]) if isinstance(value, list) else value  # type: ignore[misc]  # written by _plain
        for name, value in plain.items()
    }
