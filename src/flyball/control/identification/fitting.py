"""The fit of one recording: which lag, which range of the input, and the least-squares model there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyball.control.identification.delay import choose_lag
from flyball.control.identification.free_run import smallest_as_good
from flyball.control.identification.least_squares import Solution, solve
from flyball.control.identification.linear_range import LinearRange, linear_range
from flyball.control.identification.regressors import regressors, rows_inside, usable_rows
from flyball.control.identification.residuals import Rows, Score, Whiteness, score, whiteness
from flyball.control.models import Array, Arx

_MAX_RANGE_ROUNDS = 3  # lag and linear range depend on each other; in practice one round settles both


@dataclass(frozen=True, eq=False)
class Found:
    """The fit for one lag, and lags that the data cannot tell from it."""

    lag: int
    rivals: tuple[int, ...]
    rows: Rows
    span: LinearRange
    solution: Solution
    model: Arx
    quality: Score
    white: Whiteness
    warnings: tuple[str, ...]


class Task:
    """A recording, gaps filled for arithmetic, and what to fit to it."""

    def __init__(
        self,
        u: Array,
        y: Array,
        na: int,
        nb: int,
        offset: bool,
        whole_range: bool,
        whole: tuple[float, float],
    ) -> None:
        self._raw = (u, y)
        self.u, self.y = (
            np.where(np.isnan(signal), np.nanmean(signal), signal) if np.isnan(signal).any() else signal
            for signal in (u, y)
        )
        self.na, self.nb, self.offset, self.whole_range, self.whole = na, nb, offset, whole_range, whole

    def rows(self, lag: int) -> Rows:
        return usable_rows(*self._raw, lag, self.na, self.nb)

    def solution(self, lag: int) -> Solution:
        columns, target = regressors(self.u, self.y, self.rows(lag), lag, self.na, self.nb)
        return solve(columns, target, offset=self.offset)

    def fit(self, candidates: list[int]) -> Found:
        """The best of these lags: by the information criterion where it decides, else the smallest as good."""
        found = self.fit_best(candidates)
        if len(candidates) > 1 and (found.rivals or not found.white.white or not found.model.is_stable):
            common = self._common(candidates, found.span if found.span.bends else None)
            near = smallest_as_good(self.u, self.y, candidates, common, na=self.na, nb=self.nb, offset=self.offset)
            if near and near[0] < found.lag:
                found = self.fit_best([near[0]], near[1:])
        return found

    def _common(self, candidates: list[int], span: LinearRange | None) -> Rows:
        """Rows that every candidate can explain."""
        rows = self.rows(candidates[-1])
        if len(rows) and any(np.isnan(signal).any() for signal in self._raw):
            for lag in candidates[:-1]:
                rows = np.intersect1d(rows, self.rows(lag), assume_unique=True)
        if span is not None:
            for lag in candidates:
                rows = rows_inside(self.u, rows, lag, self.nb, (span.low, span.high))
        return rows

    def fit_best(self, candidates: list[int], rivals: tuple[int, ...] | None = None) -> Found:
        """The lag with the least one-step error; of those that the data cannot tell apart, the smallest."""
        u, y, na, nb = self.u, self.y, self.na, self.nb
        low, high = self.whole
        warnings = []
        gapped = any(np.isnan(signal).any() for signal in self._raw)
        start = self._common(candidates, None) if gapped else None
        choice = choose_lag(u, y, candidates, na=na, nb=nb, offset=self.offset, rows=start)
        rows, span = self.rows(choice.lag), LinearRange(low, high, ())
        for _ in range(0 if self.whole_range else _MAX_RANGE_ROUNDS):
            everything = self.rows(choice.lag)
            columns, target = regressors(u, y, everything, choice.lag, na, nb)
            span = linear_range(columns[na], [*columns[:na], *columns[na + 1 :]], target, whole=(low, high))
            if not span.bends:
                rows = everything
                break
            rows = rows_inside(u, everything, choice.lag, nb, (span.low, span.high))
            if rows.size < 3 * (na + nb + 1):  # rows whose older inputs lie outside are lost too: too few remain
                warnings.append(
                    f"the plant seems linear only for inputs from {span.low:g} to {span.high:g}, where there are "
                    "too few rows to fit: this model averages over more; record more there"
                )
                rows, span = everything, LinearRange(low, high, ())
                break
            again = rows if start is None else np.intersect1d(rows, start, assume_unique=True)
            if np.count_nonzero(again >= candidates[-1] + na + nb) < 3 * (na + nb + 1):
                break  # too few rows that all candidates explain to choose anew
            before = choice
            choice = choose_lag(u, y, candidates, na=na, nb=nb, offset=self.offset, rows=again)
            if choice.lag == before.lag:
                break
        columns, target = regressors(u, y, rows, choice.lag, na, nb)
        solution = solve(columns, target, offset=self.offset)
        theta = [float(x) for x in solution.coefficients]
        model = Arx(tuple(theta[:na]), tuple(theta[na : na + nb]), 0, theta[-1] if self.offset else 0.0)
        return Found(
            choice.lag,
            choice.rivals if rivals is None else rivals,
            rows,
            span,
            solution,
            model,
            score(solution.residuals, target, rows, model.a),
            whiteness(solution.residuals, rows, fitted=na, scale=float(target.std())),
            tuple(warnings),
        )
