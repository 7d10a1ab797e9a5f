"""A table of a SQLite file. The position is a row of a table beside it, written in the same transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from flyball.pipeline.sinks.follower import SinkStopped
from flyball.pipeline.sinks.streams import Stream

_TYPES = {"string": "TEXT", "bigint": "INTEGER", "double": "REAL", "boolean": "INTEGER"}
_BUSY_S = 10.0
_POSITIONS = "flyball_positions"


class SqliteTarget:
    linger_s = 0.0

    def __init__(self, stream: Stream, path: Path, table: str) -> None:
        self._stream, self._path, self._table = stream, path, table
        names = stream.columns.names
        marks = ", ".join("?" for _ in names)
        self._insert = f'INSERT INTO "{table}" ({", ".join(_quoted(name) for name in names)}) VALUES ({marks})'

    def open(self, stopping: threading.Event) -> Mapping[int, int]:  # noqa: ARG002
        self._path.parent.mkdir(parents=True, exist_ok=True)
        columns = ", ".join(f"{_quoted(item.name)} {_TYPES[item.sql_type]}" for item in self._stream.columns.items)
        with closing(self._connected()) as file, file:
            file.execute(f'CREATE TABLE IF NOT EXISTS "{self._table}" ({columns})')
            file.execute(
                f"CREATE TABLE IF NOT EXISTS {_POSITIONS} "
                '("table" TEXT, partition INTEGER, following INTEGER, PRIMARY KEY ("table", partition))'
            )
            there = {row[1] for row in file.execute(f'PRAGMA table_info("{self._table}")')}
            missing = [name for name in self._stream.columns.names if name not in there]
            if missing:
                raise SinkStopped(
                    f"the table {self._table} of {self._path} has no column {missing[0]!r}: use another table"
                )
            rows = file.execute(f'SELECT partition, following FROM {_POSITIONS} WHERE "table" = ?', (self._table,))
            return dict(rows.fetchall())

    def write(self, partition: int, offsets: Sequence[int], bodies: Sequence[bytes]) -> None:
        rows = self._stream.rows(bodies)
        values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
        with closing(self._connected()) as file, file:
            file.executemany(self._insert, values)
            file.execute(
                f"INSERT OR REPLACE INTO {_POSITIONS} VALUES (?, ?, ?)", (self._table, partition, offsets[-1] + 1)
            )

    def _connected(self) -> sqlite3.Connection:
        # A connection belongs to the thread that opened it, and opening one costs less than a millisecond.
        return sqlite3.connect(self._path, timeout=_BUSY_S)

    def close(self) -> None:
        """Nothing is open between writes."""


def _quoted(name: str) -> str:
    return f'"{name}"'
