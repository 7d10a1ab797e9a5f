"""Message bodies → typed Arrow batches; what cannot be parsed leaves as a row with the reason.

Whole chunks go through Arrow's own JSON reader, which is fast and gives up at the first bad line. Then, and only
then, the chunk is parsed line by line. Both ways must judge a body alike, whatever its neighbours are, for a
replay may cut the log into other chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flyball.errors import require
from flyball.pipeline.columns import EVENT, MALFORMED, MARK, Column, Columns
from flyball.pipeline.marks import is_mark, mark_time_s

if TYPE_CHECKING:
    import pyarrow as pa

_INT64 = range(-(2**63), 2**63)


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

        places = pa.array(
            range(first_offset, first_offset + len(bodies)) if offsets is None else offsets, pa.int64()
        )
        table = self._all_good(bodies)
        if table is None:
            return self._one_by_one(partition, places, bodies)
        count = len(bodies)
        own = [
            pa.repeat(pa.scalar(EVENT), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            places,
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(
            [*table.combine_chunks().to_batches()[0].columns, *own], schema=self._rows
        )

    def _all_good(self, bodies: Sequence[bytes]) -> pa.Table | None:
        """The fast way: a table of all bodies, or None if any of them is anything but a proper event."""
        import pyarrow as pa
        from pyarrow import json

        # One line a body, each starting an object: Arrow's reader (26.0) crashes on a line that is "null".
        text = b"\n" + b"\n".join(bodies)
        if not text.count(b"\n") == text.count(b"\n{") == len(bodies):
            return None
        # What Arrow takes and JSON proper does not; a hit inside a string only costs the slow way.
        if any(word in text for word in (b"\0", b"NaN", b"Inf")) or _may_nest_deep(text, len(bodies)):
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

    def _one_by_one(self, partition: int, places: pa.Array, bodies: Sequence[bytes]) -> pa.RecordBatch:
        import pyarrow as pa

        rows = [self._row(body) for body in bodies]
        for row, offset in zip(rows, places.to_pylist(), strict=True):
            row["_partition"], row["_offset"] = partition, offset
        return pa.RecordBatch.from_pylist(rows, schema=self._rows)

    def _row(self, body: bytes) -> dict[str, Any]:
        if is_mark(body):
            return {"_kind": MARK, self._event_time: mark_time_s(body)}
        try:
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


def _may_nest_deep(text: bytes, bodies: int) -> bool:
    """Whether some body might nest deeper than the line-by-line parser allows (1024 levels)."""
    return text.count(b"{") + text.count(b"[") - bodies > 1000


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
