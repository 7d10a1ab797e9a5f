"""Entries of result queues and of the results log: rows as one Arrow batch, with a header.

A message a row would cost more than the work on the row. So one entry holds many rows, as an Arrow IPC stream,
behind a header in JSON that says which batch they are of, how far event time has come, and how they were counted::

    NUL "rows " · length of the header (u32) · header · Arrow IPC stream

An entry starts with a NUL byte, with which no JSON text can start, so a reader tells it from an event.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

_PREFIX = b"\0rows "
_LENGTH = struct.Struct("<I")
MOST_BYTES = 512 * 1024
"""Of one entry: every broker takes that; RabbitMQ's streams refuse more than 1 MiB."""


class Entry(NamedTuple):
    header: dict[str, Any]
    rows: pa.Table


def encode(header: dict[str, Any], rows: pa.Table) -> bytes:
    """One entry.

    >>> import pyarrow as pa
    >>> body = encode({"batch": 7}, pa.table({"load": [0.5, 1.5]}))
    >>> is_entry(body), header_of(body), decode(body).rows["load"].to_pylist()
    (True, {'batch': 7}, [0.5, 1.5])
    """
    import pyarrow as pa

    text = json.dumps(header, separators=(",", ":")).encode()
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_table(rows)
    return b"".join([_PREFIX, _LENGTH.pack(len(text)), text, out.getvalue()])


def is_entry(body: bytes) -> bool:
    return body.startswith(_PREFIX)


def header_of(body: bytes) -> dict[str, Any]:
    """The header alone: cheap, whatever the rows weigh."""
    (length,) = _LENGTH.unpack_from(body, len(_PREFIX))
    at = len(_PREFIX) + _LENGTH.size
    header: dict[str, Any] = json.loads(body[at : at + length])
    return header


def decode(body: bytes) -> Entry:
    import pyarrow as pa

    (length,) = _LENGTH.unpack_from(body, len(_PREFIX))
    at = len(_PREFIX) + _LENGTH.size + length
    with pa.ipc.open_stream(pa.py_buffer(body)[at:]) as stream:
        return Entry(header_of(body), stream.read_all())


def in_order(entry: Entry) -> pa.Table:
    """The rows in event-time order: all but the late ones, which are last in an entry."""
    return entry.rows.slice(0, entry.rows.num_rows - int(entry.header.get("late", 0)))


def late(entry: Entry) -> pa.Table:
    """The rows that came too late to be put in order."""
    return entry.rows.slice(entry.rows.num_rows - int(entry.header.get("late", 0)))


def slices(rows: pa.Table, most_bytes: int = MOST_BYTES) -> Iterator[pa.Table]:
    """The rows in pieces that each fit one entry; one empty piece where there are no rows.

    The same rows are always cut alike, because a repeated batch must produce the same entries.

    >>> import pyarrow as pa
    >>> [piece.num_rows for piece in slices(pa.table({"load": [0.0] * 1000}), most_bytes=3000)]
    [375, 375, 250]
    """
    if rows.num_rows <= 1 or rows.nbytes <= most_bytes:
        yield rows
        return
    count = max(1, int(most_bytes * rows.num_rows / rows.nbytes))
    for first in range(0, rows.num_rows, count):
        piece = rows.slice(first, count)
        if piece.nbytes <= most_bytes or count == 1:
            yield piece
        else:  # its rows are larger than the average
            yield from slices(piece, most_bytes)
