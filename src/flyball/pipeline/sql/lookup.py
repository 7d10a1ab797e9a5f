"""Lookup tables: CSV files with a header, read and checked before Spark starts."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball.errors import InvalidValue
from flyball.pipeline.sql.columns import Column, Columns
from flyball.pipeline.sql.subnets import network

_TRUTH = {"true": True, "false": False}
_MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class LookupTable:
    """Rows (key, values …); `keys` are unique, or an event would come out several times."""

    keys: tuple[Any, ...]
    values: tuple[tuple[Any, ...], ...]


def read_lookup(path: Path, key: str, key_type: str, added: Columns) -> LookupTable:
    """The columns `key` and `added` of a CSV file. `key_type` is a column's type, or "subnet"."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidValue(f"the file {str(path)!r} cannot be read ({reason}); name a CSV file") from None
    if not rows:
        raise InvalidValue(f"the file {str(path)!r} is empty; it needs a header line with column names")
    header, *lines = rows
    if len(lines) > _MOST_ROWS:
        raise InvalidValue(f"the file {str(path)!r} has {len(lines)} rows; {_MOST_ROWS} are the most")
    places = [_column_index(path, header, name) for name in (key, *added.names)]
    wanted = [Column(key, key_type, required=True), *added.items]
    keys: dict[Any, int] = {}
    values = []
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise InvalidValue(
                f"{path}, line {number} has {len(line)} values but the header has {len(header)} columns; "
                "fix the file"
            )
        first, *rest = (
            _value(path, number, line[place], column) for place, column in zip(places, wanted, strict=True)
        )
        if first in keys:
            raise InvalidValue(
                f"{path}, line {number}: the key {line[places[0]]!r} is also in line {keys[first]}; keep one"
            )
        keys[first] = number
        values.append(tuple(rest))
    return LookupTable(tuple(keys), tuple(values))


def _column_index(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        raise InvalidValue(f"the file {str(path)!r} has no column {name!r}; it has {', '.join(header)}")
    return header.index(name)


def _value(path: Path, line: int, text: str, column: Column) -> Any:
    where = f"{path}, line {line}, column {column.name!r}"
    if column.sql_type == "subnet":
        try:
            return network(text.strip())
        except InvalidValue as error:
            raise InvalidValue(f"{where}: {error}") from None
    if text == "":
        if column.required:
            raise InvalidValue(f"{where}: the value is missing; fill it in, or declare the column with null")
        return None
    if column.sql_type == "string":
        return text
    readers: dict[str, Callable[[str], Any]] = {
        "bigint": int,
        "double": float,
        "boolean": lambda word: _TRUTH[word.lower()],
    }
    try:
        value = readers[column.sql_type](text)
    except (ValueError, KeyError):
        raise InvalidValue(f"{where}: {text!r} is not {column.sql_type}; correct it") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(f"{where}: {text!r} is not a finite number; correct it")
    return value
