"""Output of every command: a table for people, or exactly one JSON document for programs.

Results go to standard output; progress, warnings and hints go to standard error, so that `--json` output can
be piped as it is.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from flyball.errors import InvalidValue

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def print_json(document: Any) -> None:
    typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    """Convert what JSON does not have: infinity, NaN, numpy arrays and complex numbers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, complex):
        return {"re": _plain(value.real), "im": _plain(value.imag)}
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return _plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_out_path(out: Path | None, *, overwrite: bool = False) -> None:
    """Refuse a file that cannot be written, or that exists, before the work whose result it is for."""
    if out is None:
        return
    if out.is_file() and not overwrite:
        raise InvalidValue(f"{str(out)!r} exists already; give --out another path, or --overwrite")
    if not out.parent.is_dir():
        raise InvalidValue(f"folder {str(out.parent)!r} of --out does not exist; create it first")
    new = not out.exists()
    try:
        out.open("ab").close()  # what permissions say about root, and about /proc, is not the truth
    except OSError as error:
        raise InvalidValue(f"cannot write {str(out)!r}: {error.strerror}; give --out another path") from None
    if new:
        out.unlink()


def check_out_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written to, before the work whose results it is for."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InvalidValue(f"{option} must be a folder, got {str(folder)!r}: {str(there)!r} is a file")
    if not os.access(there, os.W_OK):
        raise InvalidValue(f"cannot write to {str(there)!r}; give {option} another folder")


def note(text: str) -> None:
    """Print a line for people, to standard error."""
    typer.echo(text, err=True)


def table(rows: Sequence[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Format rows as columns as wide as their longest cell, numbers to the right, words to the left.

    >>> print(table([("a", 0.26), ("delay", 0)], header=("name", "value")))
    name   value
    a       0.26
    delay      0
    """
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = [list(header)] * bool(header) + cells
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i < len(numeric) and numeric[i] else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 or abs(value) >= 1e9 else f"{value:,.0f}"
    return str(value)
