"""Read number columns from a user's file: CSV, TSV or blank-separated text with a header line, or Parquet.

Every error names the file, the line and column if there is one, the invalid value, and the remedy.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flyball.errors import InvalidValue, require

_SEPARATORS = (",", ";", "\t", "|")
_MISSING = ("", "nan", "na", "null", "none")

T = TypeVar("T")


def read_columns(path: Path, names: Sequence[str], *, gaps: bool = False) -> list[list[float]]:
    """Read the named columns of a file, as finite numbers, in the order of `names`.

    With `gaps`, a value that is missing is NaN instead of a mistake.
    """
    convert = _number_or_gap if gaps else _number
    return [[convert(cell, where) for cell, where in column] for column in _read_cells(path, names)]


def read_labels(path: Path, name: str) -> list[str]:
    """Read one column of a file as text."""
    return [cell for cell, _ in _read_cells(path, [name])[0]]


def read_header(path: Path) -> list[str]:
    """The names of the columns of a file."""
    return _guarded(path, lambda: _parquet_names(path) if path.suffix == ".parquet" else _text_header(path)[1])


def _read_cells(path: Path, names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """The cells of each column as text, each with the words for where it is."""
    return _guarded(
        path, lambda: _read_parquet(path, names) if path.suffix == ".parquet" else _read_text(path, names)
    )


def _guarded(path: Path, read: Callable[[], T]) -> T:
    if not path.exists():
        raise InvalidValue(f"file {str(path)!r} does not exist; give the path of a recording")
    if path.is_dir():
        raise InvalidValue(f"{str(path)!r} is a folder; give the path of a file with a recording")
    try:
        return read()
    except UnicodeDecodeError as error:
        raise InvalidValue(
            f"{path}: byte {error.object[error.start]:#04x} at position {error.start} is not UTF-8 text; "
            "save the recording as a UTF-8 text file"
        ) from None
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read ({error.strerror or error}); check its permissions") from None


def _text_header(path: Path) -> tuple[int, list[str], Iterator[tuple[int, list[str]]]]:
    lines = _split(path.read_text(encoding="utf-8-sig").splitlines())
    number, header = next(lines, (0, []))
    if not header:
        raise InvalidValue(f"{path} is empty; it needs a header line with column names and a row a sample")
    return number, header, lines


def _read_text(path: Path, names: Sequence[str]) -> list[list[tuple[str, str]]]:
    number, header, lines = _text_header(path)
    indices = _column_indices(path, header, names, line=number)
    columns: list[list[tuple[str, str]]] = [[] for _ in names]
    for number, row in lines:
        if len(row) != len(header):
            raise InvalidValue(
                f"{path}, line {number}: {len(row)} values but the header has {len(header)} columns; "
                "fix or remove that line"
            )
        for column, name, index in zip(columns, names, indices, strict=True):
            column.append((row[index], f"{path}, line {number}, column {name!r}"))
    if not columns[0]:
        raise InvalidValue(f"{path} has a header but no rows; record some samples")
    return columns


def _split(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank lines with their numbers, split by the separator of the first of them."""
    first = next((line for line in lines if line.strip()), "")
    separator = max(_SEPARATORS, key=first.count)
    if first.count(separator) == 0 and len(first.split()) > 1 and '"' not in first:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line.split()
        return
    reader = csv.reader(lines, delimiter=separator)
    for row in reader:
        if len(row) > 1 or any(cell.strip() for cell in row):  # a row of empty cells is a gap, not a blank line
            yield reader.line_num, [cell.strip() for cell in row]


def _column_indices(path: Path, header: list[str], names: Sequence[str], *, line: int | None) -> list[int]:
    where = f"{path}" if line is None else f"{path}, line {line}"
    for name in names:
        if header.count(name) > 1:
            raise InvalidValue(f"{where}: {header.count(name)} columns are called {name!r}; rename all but one")
        if name not in header:
            if all(_is_number(cell) for cell in header):
                raise InvalidValue(
                    f"{where}: no column {name!r}; the first line has numbers ({', '.join(header)}), "
                    "add a header line with column names"
                )
            raise InvalidValue(f"{where}: no column {name!r}; columns: {', '.join(header)}")
    return [header.index(name) for name in names]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        if not cell:
            raise InvalidValue(f"{where}: the value is missing; fill it in or remove that line") from None
        hint = "; write it with a decimal point" if _is_number(cell.replace(",", ".", 1)) else ""
        raise InvalidValue(
            f"{where}: {cell!r} is not a number{hint or '; correct it or remove that line'}"
        ) from None
    if not math.isfinite(value):
        raise InvalidValue(f"{where}: {cell!r} is not a finite number; correct it or remove that line")
    return value


def _number_or_gap(cell: str, where: str) -> float:
    return math.nan if cell.lower() in _MISSING else _number(cell, where)


def _parquet_names(path: Path) -> list[str]:
    parquet: Any = require("pyarrow.parquet", "lab")
    errors: Any = require("pyarrow", "lab").lib.ArrowException
    try:
        return list(parquet.ParquetFile(path).schema_arrow.names)
    except errors as error:
        raise InvalidValue(f"{path} is not a Parquet file that can be read ({error}); write it again") from None


def _read_parquet(path: Path, names: Sequence[str]) -> list[list[tuple[str, str]]]:
    parquet: Any = require("pyarrow.parquet", "lab")
    _column_indices(path, _parquet_names(path), names, line=None)
    table = parquet.ParquetFile(path).read(columns=list(names))
    if table.num_rows == 0:
        raise InvalidValue(f"{path} has no rows; record some samples")
    return [
        [
            ("" if value is None else str(value), f"{path}, row {row}, column {name!r}")
            for row, value in enumerate(table.column(name).to_pylist(), start=1)
        ]
        for name in names
    ]
