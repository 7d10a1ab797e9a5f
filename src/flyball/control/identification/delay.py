"""After how many rows does the input reach the output? Found by an information criterion.

Every candidate lag gives a least-squares fit of the same outputs; the Bayesian information criterion
n·ln(RSS/n) + p·ln n weighs its error. All candidates have p parameters and are judged on the same rows, so the
criteria differ by the errors alone. A larger lag must explain more: among lags that the data cannot distinguish
(criteria closer than 2, "not worth more than a bare mention" on the usual scale) the smallest is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from flyball.control.identification.least_squares import inner, squared_error_of
from flyball.control.identification.residuals import Rows
from flyball.control.models import Array

_INDISTINGUISHABLE = 2.0


@dataclass(frozen=True, slots=True)
class LagChoice:
    """The chosen lag, and those that explain the data about as well."""

    lag: int
    rivals: tuple[int, ...]
    criteria: tuple[tuple[int, float], ...]


def choose_lag(
    u: Array, y: Array, lags: Sequence[int], *, na: int, nb: int, offset: bool, rows: Rows | None = None
) -> LagChoice:
    """Choose among `lags`, judged on `rows` of y (default: all rows that every candidate can explain)."""
    first = max(na, max(lags) + nb - 1)
    if offset:  # near-zero means leave nothing to cancel when the exact means are subtracted below
        u, y = u - u.mean(), y - y.mean()
    products = _Products(u, y, first, None if rows is None else rows[rows >= first])
    n = products.rows
    parameters = na + nb + int(offset)
    criteria = []
    for lag in lags:
        terms = [*(("u", lag + j) for j in range(nb)), *(("y", i) for i in range(1, na + 1)), ("y", 0)]
        gram = np.array([[products.of(left, right) for right in terms] for left in terms])
        if offset:
            sums = np.array([products.of(term, ("1", term[1])) for term in terms])
            gram -= np.outer(sums, sums) / n
        error = max(squared_error_of(gram), 1e-300)  # an output at rest leaves no error at all
        criteria.append((lag, n * float(np.log(error / n)) + parameters * float(np.log(n))))
    best = min(criterion for _, criterion in criteria)
    near = sorted(lag for lag, criterion in criteria if criterion - best <= _INDISTINGUISHABLE)
    return LagChoice(near[0], tuple(near[1:]), tuple(criteria))


_Term: TypeAlias = tuple[str, int]
"""A signal and by how many rows it is shifted back."""


class _Products:
    """Σ s(k−i)·t(k−j) over the rows k, for signals s, t and shifts i, j: each computed once.

    Over rows without gaps such a sum depends on i and j by their difference alone, but for a few terms at either
    end. So the many candidates share few passes over the data.
    """

    def __init__(self, u: Array, y: Array, first: int, selected: Rows | None) -> None:
        self._signals = {"u": u, "y": y, "1": np.ones(y.size)}
        self._first = first
        self._selected = selected
        self.rows = y.size - first if selected is None else selected.size
        self._columns: dict[_Term, Array] = {}
        self._sums: dict[tuple[_Term, _Term], float] = {}

    def of(self, left: _Term, right: _Term) -> float:
        if right < left:
            left, right = right, left
        if self._selected is not None:
            return self._once(left, right)
        (s, i), (t, j) = left, right
        common = min(i, j)
        base = self._once((s, i - common), (t, j - common))
        # Rows first … end−1 of signals shifted by `common` are rows first−common … end−1−common of the others.
        first, end = self._first, self._first + self.rows
        gained = self._part((s, i - common), (t, j - common), first - common, first)
        return base + gained - self._part((s, i - common), (t, j - common), end - common, end)

    def _once(self, left: _Term, right: _Term) -> float:
        if (left, right) not in self._sums:
            self._sums[left, right] = inner(self._column(left), self._column(right))
        return self._sums[left, right]

    def _column(self, term: _Term) -> Array:
        if term not in self._columns:
            signal, shift = self._signals[term[0]], term[1]
            if self._selected is None:
                self._columns[term] = signal[self._first - shift : signal.size - shift]
            else:
                self._columns[term] = signal[self._selected - shift]
        return self._columns[term]

    def _part(self, left: _Term, right: _Term, start: int, stop: int) -> float:
        (s, i), (t, j) = left, right
        return float(self._signals[s][start - i : stop - i] @ self._signals[t][start - j : stop - j])
