"""Records in a SQLite table, for looking back after a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from flyball.control.record import LoopRecord
from flyball.errors import InvalidValue
from flyball.loops.telemetry.sink import Row, rows
from flyball.write_ahead_log import use_write_ahead_log

_BUSY_S = 5.0  # how long to wait for other processes that write to the same file
_COLUMNS = ", ".join(f'"{name}"' for name in Row._fields)
_INSERT = f"INSERT INTO receipts ({_COLUMNS}) VALUES ({', '.join('?' * len(Row._fields))})"


class SqliteSink:
    """Keeps the newest `max_rows` rows of the table `receipts`.

    The rowid numbers rows in the order of writing, so "the newest" is a comparison with the largest id: the
    oldest rows go in the same transaction that brings the new ones, and the file stops growing.
    """

    waits_for_disk: ClassVar[bool] = True

    def __init__(self, path: Path | str, max_rows: int = 1_000_000) -> None:
        if max_rows < 1:
            raise InvalidValue(f"max_rows must be a number of rows >= 1, got {max_rows}")
        self._max_rows = max_rows
        self.dropped = 0
        # The runner writes from one thread at a time, but not always from the one that opened the file.
        self._connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
        use_write_ahead_log(self._connection, _BUSY_S)
        self._connection.execute("PRAGMA synchronous=NORMAL")
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")  # other processes may open the same file at this moment
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS receipts (id INTEGER PRIMARY KEY AUTOINCREMENT, {_COLUMNS})"
            )
            self._add_missing_columns()

    def write(self, records: Sequence[LoopRecord]) -> None:
        flat = [row for record in records for row in rows(record)]
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_INSERT, flat)
            deleted = self._connection.execute(
                "DELETE FROM receipts WHERE id <= (SELECT max(id) FROM receipts) - ?", (self._max_rows,)
            )
            self.dropped += deleted.rowcount

    def _add_missing_columns(self) -> None:
        """A file of an earlier version has fewer columns; in the rows it holds, the new ones are NULL."""
        present = {name for _, name, *_ in self._connection.execute("PRAGMA table_info(receipts)")}
        for name in Row._fields:
            if name not in present:
                self._connection.execute(f'ALTER TABLE receipts ADD COLUMN "{name}"')

    def flush(self) -> None:
        """Nothing to do: every write is committed."""

    def close(self) -> None:
        self._connection.close()
