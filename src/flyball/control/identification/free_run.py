"""Which delay to believe where one-step errors do not decide: the smallest whose free run is as good as any.

One step ahead, a model with the wrong delay hides behind the last output, and where the residuals are not white
the information criterion takes small differences for evidence. A free run over data that were left out does not
forgive that. Each candidate is fitted on three quarters of the rows and runs free over the fourth, for each fourth
in turn. Among those whose error is within 5 % of the least, the smallest delay with a stable model and a plausible
gain is chosen: a larger one would have to explain more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flyball.control.identification.least_squares import inner, solve
from flyball.control.identification.regressors import one_step_residuals, regressors
from flyball.control.identification.residuals import Rows, free_run_errors
from flyball.control.models import Array, Arx

_PARTS = 4
_AS_GOOD = 1.05**2  # of squared errors
_MAX_ROWS = 20_000  # a difference that so many rows do not show is none
_PLAUSIBLE = 5.0  # a plant's gain, in units of what the recording shows of it: range of y / range of u


def smallest_as_good(
    u: Array, y: Array, lags: Sequence[int], rows: Rows, *, na: int, nb: int, offset: bool
) -> tuple[int, ...]:
    """The lags whose free run is as good as the best, stable and plausible, smallest first; none: ().

    `rows` are rows that every candidate can explain.
    """
    rows = rows[:_MAX_ROWS]
    if rows.size < _PARTS * 2 * (na + nb + 1):
        return ()
    errors = {lag: _left_out_error(u, y, rows, lag, na, nb, offset) for lag in lags}
    best = min(errors.values())
    if not np.isfinite(best):
        return ()
    limit = _AS_GOOD * best + 1e-18 * inner(y[rows], y[rows])
    return tuple(
        lag
        for lag in sorted(lags)
        if errors[lag] <= limit and is_plausible(_fitted(u, y, rows, lag, na, nb, offset), u[rows], y[rows])
    )


def is_plausible(model: Arx, u: Array, y: Array) -> bool:
    """A stable model whose steady-state gain is not far beyond what the recording shows.

    >>> from flyball.control.models import first_order
    >>> u = np.array([0.0, 1.0])
    >>> is_plausible(first_order(0.99, 2.0), u, u), is_plausible(first_order(0.5, 1.0), u, u)
    (False, True)
    """
    if not model.is_stable:
        return False
    return abs(model.gain) * float(np.ptp(u)) <= _PLAUSIBLE * float(np.ptp(y))


def _left_out_error(u: Array, y: Array, rows: Rows, lag: int, na: int, nb: int, offset: bool) -> float:
    total = 0.0
    for part in np.array_split(np.arange(rows.size), _PARTS):
        model = _fitted(u, y, np.delete(rows, part), lag, na, nb, offset)
        columns, target = regressors(u, y, rows[part], lag, na, nb)
        errors = free_run_errors(one_step_residuals(model, columns, target), rows[part], model.a)
        with np.errstate(over="ignore", invalid="ignore"):
            squared = inner(errors, errors)
        total += squared if np.isfinite(squared) else np.inf
    return total


def _fitted(u: Array, y: Array, rows: Rows, lag: int, na: int, nb: int, offset: bool) -> Arx:
    columns, target = regressors(u, y, rows, lag, na, nb)
    theta = [float(x) for x in solve(columns, target, offset=offset).coefficients]
    return Arx(tuple(theta[:na]), tuple(theta[na : na + nb]), 0, theta[-1] if offset else 0.0)
