"""Which numbers of a recording stand beside each other in one equation of the model.

Row r of the output is explained by the na outputs before it and by nb inputs, the newest `lag` rows before it.
"""

from __future__ import annotations

import numpy as np

from flyball.control.identification.residuals import Rows
from flyball.control.models import Array, Arx


def usable_rows(u: Array, y: Array, lag: int, na: int, nb: int) -> Rows:
    """Rows of y for which all regressors exist."""
    return np.arange(min(max(na, lag + nb - 1), u.size), y.size)


def rows_inside(u: Array, rows: Rows, lag: int, nb: int, span: tuple[float, float]) -> Rows:
    selected = np.ones(rows.size, dtype=bool)
    for j in range(nb):
        drive = u[rows - lag - j]
        selected &= (drive >= span[0]) & (drive <= span[1])
    return np.asarray(rows[selected])


def shifted(signal: Array, first: int, lag: int) -> Array:
    return signal[first - lag : signal.size - lag]


def other_regressors(u: Array, y: Array, first: int, lag: int, na: int, nb: int) -> list[Array]:
    return [shifted(y, first, i + 1) for i in range(na)] + [shifted(u, first, lag + j) for j in range(1, nb)]


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
