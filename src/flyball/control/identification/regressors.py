"""Which numbers of a recording stand beside each other in one equation of the model.

Row r of the output is explained by the na outputs before it and by nb inputs, the newest `lag` rows before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flyball.control.identification.residuals import Rows
from flyball.control.models import Array, Arx
from flyball.errors import InvalidValue


def usable_rows(u: Array, y: Array, lag: int, na: int, nb: int) -> Rows:
    """Rows of y for which all regressors exist; a value that is not a number is one that is missing."""
    rows = np.arange(min(max(na, lag + nb - 1), u.size), y.size)
    no_u, no_y = np.isnan(u), np.isnan(y)
    if not (no_u.any() or no_y.any()):
        return rows
    missing = no_y[rows]
    for i in range(1, na + 1):
        missing |= no_y[rows - i]
    for j in range(nb):
        missing |= no_u[rows - lag - j]
    return np.asarray(rows[~missing])


def join_recordings(pieces: Sequence[tuple[Array, Array]], reach: int) -> tuple[Array, Array]:
    """Several recordings of one plant as one, with so many missing rows between that no equation spans two.

    >>> u, y = join_recordings([(np.ones(2), np.ones(2)), (np.zeros(1), np.zeros(1))], reach=1)
    >>> u.tolist()
    [1.0, 1.0, nan, 0.0]
    """
    gap = np.full(reach, np.nan)
    parts = [(np.concatenate([u, gap]), np.concatenate([y, gap])) for u, y in pieces]
    end = -reach or None
    return np.concatenate([u for u, _ in parts])[:end], np.concatenate([y for _, y in parts])[:end]


def fill_gaps(times: Array, signals: Sequence[Array], reach: int) -> list[Array]:
    """The signals with a NaN for every sample that the times show to be missing, at most `reach` in a row.

    The usual step of the time is one sample; where time stands still or goes back, another recording begins.

    >>> fill_gaps(np.array([0.0, 1.0, 3.0, 4.0]), [np.array([5.0, 6.0, 7.0, 8.0])], reach=9)[0].tolist()
    [5.0, 6.0, nan, 7.0, 8.0]
    """
    steps = np.diff(times)
    usual = float(np.median(steps)) if steps.size else 0.0
    if usual <= 0.0:
        raise InvalidValue(f"the time must advance from row to row, got steps of {usual:g}")
    samples = np.where(steps > 0.0, np.clip(np.rint(steps / usual), 1, reach + 1), reach + 1).astype(np.int64)
    positions = np.concatenate([[0], np.cumsum(samples)])
    filled = []
    for signal in signals:
        spread = np.full(int(positions[-1]) + 1, np.nan)
        spread[positions] = signal
        filled.append(spread)
    return filled


def rows_inside(u: Array, rows: Rows, lag: int, nb: int, span: tuple[float, float]) -> Rows:
    selected = np.ones(rows.size, dtype=bool)
    for j in range(nb):
        drive = u[rows - lag - j]
        selected &= (drive >= span[0]) & (drive <= span[1])
    return np.asarray(rows[selected])


def shifted(signal: Array, first: int, lag: int) -> Array:
    return signal[first - lag : signal.size - lag]


def regressors(u: Array, y: Array, rows: Rows, lag: int, na: int, nb: int) -> tuple[list[Array], Array]:
    """Regressors y(k)…, u(k−D)… and the target y(k+1); views where the rows have no gaps."""
    first = int(rows[0])
    if first + rows.size == y.size:
        inputs = [shifted(u, first, lag + j) for j in range(nb)]
        return [*(shifted(y, first, i + 1) for i in range(na)), *inputs], y[first:]
    return [*(y[rows - i - 1] for i in range(na)), *(u[rows - lag - j] for j in range(nb))], y[rows]


def one_step_residuals(model: Arx, columns: list[Array], target: Array) -> Array:
    left = target - model.offset
    for coefficient, column in zip((*model.a, *model.b), columns, strict=True):
        left -= coefficient * column
    return left
