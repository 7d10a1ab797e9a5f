"""Was the input set by a controller that looks at the output? Then much of what relates them is the controller.

Two signs of it. The innovation of the input, what its own past does not predict, has nothing to do with what the
model left unexplained before it, unless somebody answers the output: then they correlate. And where rows are
read as if the output answered the input of its own row, the model is the controller turned round: its gain has the
other sign than that of the model which reads rows one later.
"""

from __future__ import annotations

import numpy as np

from flyball.control.identification.innovations import innovations
from flyball.control.identification.least_squares import Solution, inner
from flyball.control.identification.residuals import Rows
from flyball.control.models import Array
from flyball.errors import InvalidValue

_REACH = 4  # rows within which an answer shows
_EVIDENCE = 4.5  # deviations of a correlation by chance; a handful of them is looked at
_LEAST_ROWS = 40


def answers_output(u: Array, residuals: Array, rows: Rows, *, lag: int) -> bool:
    """Whether the input answers the residuals of the model with this lag: evidence of feedback."""
    news = innovations(u)
    scale = float(np.abs(u[np.isfinite(u)]).max(initial=0.0))
    # A row's own output can answer its own input where rows are read so (lag 0): that is no feedback.
    for ahead in range(0 if lag > 0 else 1, _REACH + 1):
        there = rows + ahead < u.size
        later = np.where(there, news[np.minimum(rows + ahead, u.size - 1)], np.nan)
        usable = np.isfinite(later)
        if np.count_nonzero(usable) < _LEAST_ROWS:
            continue
        left, right = residuals[usable], later[usable]
        left, right = left - left.mean(), right - right.mean()
        size = inner(left, left) * inner(right, right)
        if size <= 0.0 or np.sqrt(inner(right, right) / right.size) <= 1e-9 * scale:
            continue
        if abs(inner(left, right)) / np.sqrt(size) * np.sqrt(left.size) > _EVIDENCE:
            return True
    return False


def is_controller_turned_round(own_row: Solution, row_before: Solution, *, at: int) -> bool:
    """Whether two fits, of rows read as `same` and as `next`, have significant gains of opposite signs.

    `at` is where the gain stands among the coefficients.
    """
    gains = [float(solution.coefficients[at]) for solution in (own_row, row_before)]
    deviations = [float(np.sqrt(max(solution.covariance[at, at], 0.0))) for solution in (own_row, row_before)]
    significant = all(abs(gain) > 3.0 * deviation for gain, deviation in zip(gains, deviations, strict=True))
    return significant and gains[0] * gains[1] < 0.0


def check_exact(own_row: Solution, r2: float, row_before: Solution, names: tuple[str, str], a: float) -> None:
    """Refuse a recording whose input is exactly a function of the same row's output.

    That is a controller without memory, or a plant without memory and noise: the numbers are the same.
    """
    if (
        r2 > 1.0 - 1e-9
        and abs(a) < 1e-6
        and not np.isfinite(row_before.condition)
        and np.isfinite(own_row.condition)
    ):
        raise InvalidValue(
            f"the {names[1]} and the {names[0]} of a row determine each other exactly: a proportional controller "
            "without a probing signal, or a plant without memory; say which by align next or same, or record with "
            "a probing signal"
        )
