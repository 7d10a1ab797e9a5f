"""After how many rows does the input reach the output? Found by an information criterion.

Every candidate lag gives a least-squares fit of the same outputs; the Bayesian information criterion
n·ln(RSS/n) + p·ln n weighs its error. All candidates have p parameters and are judged on the same rows, so the
criteria differ by the errors alone. A larger lag must earn its place: among lags that the data cannot tell apart
(criteria closer than 2, "not worth more than a bare mention" on the usual scale) the smallest is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball.control.least_squares import squared_error_of
from flyball.control.models import Array
from flyball.control.residuals import Rows

_INDISTINGUISHABLE = 2.0


@dataclass(frozen=True, slots=True)
class LagChoice:
    """The lag taken, and those that explain the data about as well."""

    lag: int
    rivals: tuple[int, ...]
    criteria: tuple[tuple[int, float], ...]


def choose_lag(
    u: Array, y: Array, lags: Sequence[int], *, na: int, nb: int, offset: bool, rows: Rows | None = None
) -> LagChoice:
    """Choose among `lags`, judged on `rows` of y (default: all rows that every candidate can explain)."""
    first = max(na, max(lags) + nb - 1)
    if rows is None:
        places: Rows | None = None
        n = y.size - first
    else:
        places = rows[rows >= first]
        n = places.size

    def shifted(signal: Array, lag: int) -> Array:
        return signal[first - lag : signal.size - lag] if places is None else signal[places - lag]

    if offset:  # near-zero means leave nothing to cancel when the exact means are taken out below
        u, y = u - u.mean(), y - y.mean()
    outputs = [shifted(y, i) for i in (*range(1, na + 1), 0)]
    common = np.array([[left @ right for right in outputs] for left in outputs])
    output_sums = np.array([column.sum() for column in outputs])
    criteria = []
    for lag in lags:
        inputs = [shifted(u, lag + j) for j in range(nb)]
        gram = np.empty((nb + na + 1, nb + na + 1))
        gram[nb:, nb:] = common
        for i, column in enumerate(inputs):
            gram[i, :nb] = [column @ other for other in inputs]
            gram[i, nb:] = gram[nb:, i] = [column @ other for other in outputs]
        if offset:
            sums = np.concatenate([[column.sum() for column in inputs], output_sums])
            gram -= np.outer(sums, sums) / n
        parameters = na + nb + int(offset)
        criteria.append((lag, n * float(np.log(squared_error_of(gram) / n)) + parameters * float(np.log(n))))
    best = min(criterion for _, criterion in criteria)
    near = sorted(lag for lag, criterion in criteria if criterion - best <= _INDISTINGUISHABLE)
    return LagChoice(near[0], tuple(near[1:]), tuple(criteria))
