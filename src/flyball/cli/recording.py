"""Recordings as `flyball identify` reads them: files, series in a file, gaps between rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flyball.cli.columns import read_columns, read_header, read_labels
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.control.models import Array

# The columns by which a file is known to be the telemetry of loops.
_OF_A_LOOP = {"loop", "setpoint", "command", "measurement"}
_REACH = 12  # rows that an equation of the model may span: the largest delay, and one either way
_MAX_NAMED = 5


@dataclass(frozen=True)
class Columns:
    """Which columns of a file matter; `time` and `by` where they are given."""

    input: str
    output: str
    time: str | None = None
    by: str | None = None


def is_telemetry(file: Path, columns: Columns) -> bool:
    """Whether the file is telemetry of loops, where a command is set after the measurement of its row."""
    return (columns.input, columns.output) == ("command", "measurement") and set(read_header(file)) >= _OF_A_LOOP


def read_series(file: Path, columns: Columns) -> dict[str, tuple[Array, Array]]:
    """Input and output of each series in a file, by the series' name ('' where there is one); NaN is a gap."""
    import numpy as np

    from flyball.control.identification.regressors import fill_gaps

    telemetry = is_telemetry(file, columns)
    time = columns.time or ("time" if telemetry and "time" in read_header(file) else None)
    u, y = (np.array(column) for column in read_columns(file, (columns.input, columns.output), gaps=True))
    labels = np.array(read_labels(file, columns.by)) if columns.by is not None else np.full(u.size, "")
    if telemetry and columns.by is None:
        _check_one_loop(file)
    times = np.array(read_columns(file, (time,))[0]) if time is not None else None
    series: dict[str, tuple[Array, Array]] = {}
    for label in dict.fromkeys(labels.tolist()):
        rows = np.flatnonzero(labels == label)
        found = [u[rows], y[rows]]
        if times is not None:
            try:
                found = fill_gaps(times[rows], found, _REACH)
            except InvalidValue as error:
                raise InvalidValue(f"{file}, column {time!r}: {error}") from None
        series[label] = (found[0], found[1])
    return series


def join(pieces: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    from flyball.control.identification.regressors import join_recordings

    return join_recordings(pieces, _REACH) if len(pieces) > 1 else pieces[0]


def _check_one_loop(file: Path) -> None:
    loops = sorted(set(read_labels(file, "loop")))
    if len(loops) > 1:
        named = ", ".join(loops[:_MAX_NAMED]) + (", …" if len(loops) > _MAX_NAMED else "")
        raise InvalidValue(f"{file} has {len(loops)} loops ({named}); add --by loop for a model of each")
