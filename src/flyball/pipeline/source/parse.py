"""Message bodies → typed Arrow batches; what cannot be parsed leaves as a row with the reason.

Whole chunks go through Arrow's own JSON reader, which is fast and gives up at the first bad line. Then, and only
then, the chunk is parsed line by line. Both ways must judge a body alike, whatever its neighbours are, for a
replay may cut the log into other chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flyball.errors import InvalidValue, require
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.marks import is_mark, mark_source, mark_time_s
from flyball.pipeline.sql.columns import END_MARK, EVENT, MALFORMED, MARK, Column, Columns

if TYPE_CHECKING:
    import pyarrow as pa

_NEWLINE, _OPEN, _OPEN_LIST = b"\n{["
_INT64 = range(-(2**63), 2**63)


class Parser(Protocol):
    """Turns a chunk of a log's partition into rows for Spark."""

    def parse(
        self, partition: int, first_offset: int, bodies: Sequence[bytes], offsets: Sequence[int] | None
    ) -> pa.RecordBatch: ...


def parser_of(name: str, columns: Columns, event_time: str) -> Parser:
    """The parser of a format.

    >>> parser_of("xml", Columns(()), "")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: there is no format 'xml'; there are: json, raw, rows
    """
    if name == "json":
        return JsonParser(columns, event_time)
    if name == "raw":
        return RawParser(columns)
    if name == "rows":
        return RowsParser(columns, event_time)
    raise InvalidValue(f"there is no format {name!r}; there are: json, raw, rows")


class RawParser:
    """Bodies as they are; what they mean is the user's business."""

    def __init__(self, columns: Columns) -> None:
        self._rows = columns.row_schema()

    def parse(
        self, partition: int, first_offset: int, bodies: Sequence[bytes], offsets: Sequence[int] | None
    ) -> pa.RecordBatch:
        import pyarrow as pa

        own = _own_columns(partition, _offsets(first_offset, len(bodies), offsets))
        own[-1] = pa.array(bodies, pa.binary())
        return pa.RecordBatch.from_arrays(own, schema=self._rows)


class RowsParser:
    """Entries of a results log: many rows each, in order, with the place in the input that each came from."""

    def __init__(self, columns: Columns, event_time: str) -> None:
        self._columns, self._event_time = columns, event_time
        self._rows = columns.row_schema()

    def parse(
        self,
        partition: int,  # noqa: ARG002 (rows say where they came from)
        first_offset: int,  # noqa: ARG002
        bodies: Sequence[bytes],
        offsets: Sequence[int] | None,  # noqa: ARG002
    ) -> pa.RecordBatch:
        import pyarrow as pa

        parts = [part for body in bodies for part in self._part(body)]
        table = pa.concat_tables([self._rows.empty_table(), *parts]).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=self._rows)

    def _part(self, body: bytes) -> Iterator[pa.Table]:
        import pyarrow as pa

        found = entry.decode(body)
        rows = entry.in_order(found)
        count = rows.num_rows
        own = {
            "_kind": pa.repeat(pa.scalar(EVENT), count),
            "_error": pa.nulls(count, pa.string()),
            "_body": pa.nulls(count, pa.binary()),
        }
        columns = [own[name] if name in own else rows[name] for name in self._rows.names]
        yield pa.Table.from_arrays(columns, schema=self._rows)
        if found.header["mark_s"] is not None:
            mark = {"_kind": MARK, self._event_time: found.header["mark_s"]}
            mark |= {"_body": END_MARK} if found.header["ends"] else {}
            yield pa.Table.from_pylist([mark], schema=self._rows)


def _offsets(first_offset: int, count: int, offsets: Sequence[int] | None) -> pa.Array:
    import pyarrow as pa

    record_offsets = np.arange(first_offset, first_offset + count) if offsets is None else offsets
    return pa.array(record_offsets, pa.int64())


def _own_columns(partition: int, record_offsets: pa.Array) -> list[pa.Array]:
    """The source's own columns of events, in their order."""
    import pyarrow as pa

    count = len(record_offsets)
    return [
        pa.repeat(pa.scalar(EVENT), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        record_offsets,
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.binary()),
    ]


class JsonParser:
    """Parses the JSON objects of one stream.

    `event_time` names the column that holds the event's time in seconds; marks carry their time in it.
    """

    def __init__(self, columns: Columns, event_time: str) -> None:
        self._columns = columns
        self._event_time = event_time
        self._rows = columns.row_schema()
        self._events = columns.event_schema()
        self._required = [item.name for item in columns.items if item.required]

    def parse(
        self, partition: int, first_offset: int, bodies: Sequence[bytes], offsets: Sequence[int] | None
    ) -> pa.RecordBatch:
        import pyarrow as pa

        record_offsets = _offsets(first_offset, len(bodies), offsets)
        table = self._all_good(bodies)
        if table is None:
            return self._one_by_one(partition, record_offsets, bodies)
        events = table.combine_chunks().to_batches()[0].columns
        return pa.RecordBatch.from_arrays([*events, *_own_columns(partition, record_offsets)], schema=self._rows)

    def _all_good(self, bodies: Sequence[bytes]) -> pa.Table | None:
        """The fast way: a table of all bodies, or None if any of them is anything but a proper event."""
        import pyarrow as pa
        from pyarrow import json

        # One line a body, each starting an object: Arrow's reader (26.0) crashes on a line that is "null".
        text = b"\n" + b"\n".join(bodies)
        letters = np.frombuffer(text, dtype=np.uint8)
        lines = np.flatnonzero(letters == _NEWLINE)
        if lines.size != len(bodies) or lines[-1] + 1 == letters.size or np.any(letters[lines + 1] != _OPEN):
            return None
        # What Arrow takes and JSON proper does not; a hit inside a string only costs the slow way.
        if any(word in text for word in (b"\0", b"NaN", b"Inf")) or _may_nest_deep(letters, len(bodies)):
            return None
        try:
            text.decode()  # Arrow would let broken UTF-8 through
            table = json.read_json(
                pa.BufferReader(text),
                read_options=json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=json.ParseOptions(explicit_schema=self._events, unexpected_field_behavior="ignore"),
            )
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        if table.num_rows != len(bodies) or any(table[name].null_count for name in self._required):
            return None
        return table

    def _one_by_one(self, partition: int, record_offsets: pa.Array, bodies: Sequence[bytes]) -> pa.RecordBatch:
        import pyarrow as pa

        rows = [self._row(body) for body in bodies]
        for row, offset in zip(rows, record_offsets.to_pylist(), strict=True):
            row["_partition"], row["_offset"] = partition, offset
        return pa.RecordBatch.from_pylist(rows, schema=self._rows)

    def _row(self, body: bytes) -> dict[str, Any]:
        try:
            if is_mark(body):
                return {"_kind": MARK, self._event_time: mark_time_s(body), "_body": mark_source(body).encode()}
            return {"_kind": EVENT, **self._event(body)}
        except ValueError as error:
            return {"_kind": MALFORMED, "_error": str(error), "_body": body}

    def _event(self, body: bytes) -> dict[str, Any]:
        orjson = require("orjson", "spark")
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"not a JSON object but {type(value).__name__}")
        return {item.name: _checked(value.get(item.name), item) for item in self._columns.items}


def _may_nest_deep(letters: np.ndarray[tuple[int], np.dtype[np.uint8]], bodies: int) -> bool:
    """Whether some body might nest deeper than the line-by-line parser allows (1024 levels)."""
    return int(np.count_nonzero(letters == _OPEN) + np.count_nonzero(letters == _OPEN_LIST)) - bodies > 1000


def _checked(value: Any, column: Column) -> Any:
    if value is None:
        if column.required:
            raise ValueError(f"{column.name} is missing")
        return None
    fits = isinstance(value, column.python_types) and (column.sql_type == "boolean" or not isinstance(value, bool))
    if fits and column.sql_type == "bigint":
        fits = value in _INT64
    if fits and column.sql_type == "double":
        value = float(value)
        fits = math.isfinite(value)
    if not fits:
        raise ValueError(f"{column.name} should be {column.sql_type}, not {str(value)[:40]!r}")
    return value
