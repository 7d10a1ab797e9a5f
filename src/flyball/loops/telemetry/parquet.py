"""Records in a few rotating Parquet files, for analysis with pandas, DuckDB or Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from flyball.control.record import LoopRecord
from flyball.errors import InvalidValue, require
from flyball.loops.telemetry.sink import Row, rows


class ParquetSink:
    """Writes `receipts-NNNNNN.parquet` in `folder`, `rows_per_file` rows each, and keeps the newest `max_files`.

    A Parquet file cannot be appended to, so rows wait in memory until a file is full or the run ends;
    a file appears under its name only when it is complete.
    """

    waits_for_disk: ClassVar[bool] = True

    def __init__(self, folder: Path | str, rows_per_file: int = 100_000, max_files: int = 10) -> None:
        if rows_per_file < 1 or max_files < 1:
            raise InvalidValue(f"rows_per_file and max_files must be >= 1, got {rows_per_file} and {max_files}")
        self._arrow = require("pyarrow", "lab")
        self._parquet = require("pyarrow.parquet", "lab")
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rows_per_file = rows_per_file
        self._max_files = max_files
        self._waiting: list[Row] = []
        self.dropped = 0
        pa = self._arrow
        text, real, whole = pa.string(), pa.float64(), pa.int64()
        kinds = dict.fromkeys(Row._fields, real)
        kinds |= dict.fromkeys(("loop", "mode", "parts", "reason", "alert", "code"), text) | {"frozen": pa.bool_()}
        kinds |= {"axis": whole, "saturated": whole, "missed": whole}
        self._schema = pa.schema(list(kinds.items()))

    def write(self, records: Sequence[LoopRecord]) -> None:
        self._waiting.extend(row for record in records for row in rows(record))
        while len(self._waiting) >= self._rows_per_file:
            self._write_file(self._waiting[: self._rows_per_file])
            del self._waiting[: self._rows_per_file]

    def flush(self) -> None:
        if self._waiting:
            self._write_file(self._waiting)
            self._waiting = []

    def _write_file(self, rows_of_file: Sequence[Row]) -> None:
        files = self._files()
        number = int(files[-1].stem.rpartition("-")[2]) + 1 if files else 1
        columns = dict(zip(Row._fields, map(list, zip(*rows_of_file, strict=True)), strict=True))
        path = self._folder / f"receipts-{number:06}.parquet"
        unfinished = path.with_suffix(".tmp")
        self._parquet.write_table(self._arrow.table(columns, schema=self._schema), unfinished)
        unfinished.rename(path)
        for old in self._files()[: -self._max_files]:
            self.dropped += self._parquet.read_metadata(old).num_rows
            old.unlink()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("receipts-*.parquet"))
