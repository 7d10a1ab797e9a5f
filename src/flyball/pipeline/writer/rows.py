"""Rows of the sink as messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flyball.message import Message, check_name
from flyball.pipeline.policy.appending import WRITE_HEADER, MessageIds

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class OutgoingRow:
    """A row as a message, and why it is none (`refusal`)."""

    channel: str
    message: Message
    refusal: str | None = None


class RowReader:
    """Turns the rows of one task into messages. `channel` is empty where a column names it."""

    def __init__(self, channel: str, mark: str) -> None:
        self._channel, self._mark = channel, mark
        self._ids = MessageIds(mark)

    def read(self, rows: pa.RecordBatch) -> Iterator[OutgoingRow]:
        columns = {name: _values(rows.column(name), name) for name in rows.schema.names}
        for number in range(rows.num_rows):
            yield self._row({name: values[number] for name, values in columns.items()})

    def _row(self, row: dict[str, Any]) -> OutgoingRow:
        refusal = None
        headers: dict[str, Any] = {}
        try:
            headers = _headers(row.get("headers"))
            channel = self._channel or _channel(row["channel"])
            if row["value"] is None:
                raise ValueError("its value is null")
        except ValueError as error:
            refusal = str(error)
            channel = self._channel
        body, key, time_s = _bytes(row["value"]) or b"", _bytes(row.get("key")), _seconds(row.get("timestamp"))
        id = row.get("id")
        if id is None:
            message = Message(body, self._ids.derive(body, key, headers, time_s), key, headers, time_s)
        else:
            message = Message(body, id, key, {**headers, WRITE_HEADER: self._mark}, time_s)
        return OutgoingRow(channel, message, refusal)


def _values(column: pa.Array, name: str) -> list[Any]:
    import pyarrow as pa

    if name == "timestamp":
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1e6


def _channel(name: str | None) -> str:
    if name is None:
        raise ValueError("its channel is null")
    return check_name(name)


def _headers(value: Any) -> dict[str, Any]:
    """Of a map, or of an array of structs as Spark's Kafka source delivers it.

    >>> _headers([("a", "1")]), _headers([{"key": "a", "value": b"1"}]), _headers(None)
    ({'a': '1'}, {'a': b'1'}, {})
    """
    pairs = [(each["key"], each["value"]) if isinstance(each, dict) else each for each in value or () if each]
    headers: dict[str, Any] = {}
    for name, content in pairs:
        if content is None:
            raise ValueError(f"its header {name!r} is null")
        if name in headers:
            raise ValueError(f"its header {name!r} is there twice")
        headers[name] = content
    return headers
