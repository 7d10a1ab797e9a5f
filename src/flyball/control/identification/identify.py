"""Recorded data → model, with the evidence for it.

`identify` fits y(k+1) = a·y(k) + b·u(k−D) + c (or more terms of each) by least squares as the prefetch paper does,
and finds out what a recording does not say by itself:

alignment  `same`: a row's output was measured under that row's input; `next`: under the previous row's (as in the
           prefetch paper). A row of the model needs u(k−D) beside y(k+1), so in rows the input lags the output
           by D (`same`) or D + 1 (`next`): one lag covers both, and `delay.choose_lag` finds it.
range      the inputs between which the plant is linear; the model is fitted to rows inside it.

The result says how far to trust it: covariance and confidence intervals, R² one step ahead and in a free run,
whiteness of the residuals, and warnings in words. Data that cannot hold an answer (constant input, too few
samples, missing numbers) are errors; a poor or unstable fit is a result with warnings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from flyball.control.identification.checks import NAMES, check_movement, check_size, signals
from flyball.control.identification.delay import choose_lag
from flyball.control.identification.diagnostics import doubts_about
from flyball.control.identification.least_squares import Solution, solve
from flyball.control.identification.linear_range import LinearRange, linear_range
from flyball.control.identification.regressors import (
    one_step_residuals,
    other_regressors,
    regressors,
    rows_inside,
    shifted,
    usable_rows,
)
from flyball.control.identification.residuals import Score, Whiteness, score, whiteness
from flyball.control.models import Array, Arx
from flyball.errors import InvalidValue

Alignment: TypeAlias = Literal["same", "next"]

_MAX_RANGE_ROUNDS = 3  # lag and linear range depend on each other; in practice one round settles both


@dataclass(frozen=True, eq=False)
class Fit:
    """A model and the evidence for it."""

    model: Arx
    align: Alignment
    offset: bool
    """Whether the offset was estimated (else it is 0 by decision)."""
    covariance: Array
    """Of the estimates, in the order a₁…aₙ, b₁…bₘ and, where estimated, c."""
    confidence: Mapping[str, tuple[float, float]]
    """Intervals that hold the true value with probability `confidence_level`, by name: a, b, c (or a1, a2 …)."""
    confidence_level: float
    noise_std: float
    linear_range: tuple[float, float]
    score: Score
    whiteness: Whiteness
    condition: float
    warnings: tuple[str, ...] = field(default=())

    @property
    def r2(self) -> float:
        return self.score.r2

    @property
    def rmse(self) -> float:
        return self.score.rmse

    @property
    def r2_free_run(self) -> float:
        return self.score.r2_free_run

    @property
    def residuals_white(self) -> bool:
        return self.whiteness.white

    def evaluate(self, commands: npt.ArrayLike, measurements: npt.ArrayLike) -> Score:
        """Score the model on other data (a test set), inside its linear range."""
        return evaluate(self.model, commands, measurements, align=self.align, within=self.linear_range)


def identify(
    commands: npt.ArrayLike,
    measurements: npt.ArrayLike,
    *,
    na: int = 1,
    nb: int = 1,
    delay: int | Literal["auto"] = "auto",
    align: Alignment | Literal["auto"] = "auto",
    offset: bool = True,
    whole_range: bool = False,
    max_delay: int = 10,
    confidence_level: float = 0.95,
    names: tuple[str, str] = NAMES,
) -> Fit:
    """Fit an ARX model to one recording, a command and a measurement in each row.

    `whole_range` skips the search for the linear range: the model then describes all rows. `names` is what
    complaints call the two series.

    >>> u = np.array([5.0, 5, 9, 9, 2, 2, 7, 3, 3, 8, 8, 1, 6, 6, 4])
    >>> y = Arx((0.26,), (59.73,)).simulate(u)
    >>> fit = identify(u, y)
    >>> round(fit.model.a[0], 4), round(fit.model.b[0], 2), fit.model.delay, fit.align
    (0.26, 59.73, 0, 'same')
    """
    u, y = signals(commands, measurements, names)
    _check_options(na, nb, delay, align, max_delay, confidence_level)
    candidates = _candidate_lags(delay, align, min(max_delay, u.size // 5))
    check_size(u.size, candidates, na, nb, offset)
    low, high = check_movement(u, y, names)
    warnings: list[str] = []

    choice = choose_lag(u, y, candidates, na=na, nb=nb, offset=offset)
    rows, span = usable_rows(u, y, choice.lag, na, nb), LinearRange(low, high, ())
    for _ in range(0 if whole_range else _MAX_RANGE_ROUNDS):
        everything = usable_rows(u, y, choice.lag, na, nb)
        first = int(everything[0])
        drive = shifted(u, first, choice.lag)
        span = linear_range(drive, other_regressors(u, y, first, choice.lag, na, nb), y[first:], whole=(low, high))
        if not span.bends:
            rows = everything
            break
        rows = rows_inside(u, everything, choice.lag, nb, (span.low, span.high))
        if rows.size < 3 * (na + nb + 1):  # rows whose older inputs lie outside are lost too: too few remain
            warnings.append(
                f"the plant seems linear only for inputs from {span.low:g} to {span.high:g}, where there are too "
                "few rows to fit: this model averages over more; record more there"
            )
            rows, span = everything, LinearRange(low, high, ())
            break
        if np.count_nonzero(rows >= candidates[-1] + na + nb) < 3 * (na + nb + 1):
            break  # too few rows that all candidates explain to choose anew
        before, choice = choice, choose_lag(u, y, candidates, na=na, nb=nb, offset=offset, rows=rows)
        if choice.lag == before.lag:
            break
    lag = choice.lag
    found_align, found_delay = _named(lag, delay, align)
    if choice.rivals:
        warnings.append(_ambiguous(lag, choice.rivals, delay, align))
    if span.bends:
        warnings.append(
            f"linear only for inputs from {span.low:g} to {span.high:g}: the fit uses {rows.size} of {u.size} rows"
        )

    columns, target = regressors(u, y, rows, lag, na, nb)
    solution = solve(columns, target, offset=offset)
    theta = [float(x) for x in solution.coefficients]
    model = Arx(tuple(theta[:na]), tuple(theta[na : na + nb]), found_delay, theta[-1] if offset else 0.0)
    residuals = solution.residuals
    quality = score(residuals, target, rows, model.a)
    white = whiteness(residuals, rows, fitted=na, scale=float(target.std()))
    confidence = _confidence(solution, na, nb, offset, confidence_level)
    warnings += doubts_about(model, quality, white, confidence, solution, u[rows - lag])
    return Fit(
        model=model,
        align=found_align,
        offset=offset,
        covariance=solution.covariance,
        confidence=MappingProxyType(confidence),
        confidence_level=confidence_level,
        noise_std=float(np.sqrt(solution.noise_variance)),
        linear_range=(span.low, span.high),
        score=quality,
        whiteness=white,
        condition=solution.condition,
        warnings=tuple(warnings),
    )


def evaluate(
    model: Arx,
    commands: npt.ArrayLike,
    measurements: npt.ArrayLike,
    *,
    align: Alignment = "next",
    within: tuple[float, float] | None = None,
) -> Score:
    """Score a model on data it was not fitted to, on the rows whose inputs lie `within` a range (default: all)."""
    u, y = signals(commands, measurements)
    lag, na, nb = model.delay + (align == "next"), len(model.a), len(model.b)
    rows = usable_rows(u, y, lag, na, nb)
    if within is not None:
        rows = rows_inside(u, rows, lag, nb, within)
    if rows.size < 2:
        where = "" if within is None else f" with inputs from {within[0]:g} to {within[1]:g}"
        raise InvalidValue(f"only {rows.size} of {u.size} rows{where} can be predicted; give a longer recording")
    columns, target = regressors(u, y, rows, lag, na, nb)
    return score(one_step_residuals(model, columns, target), target, rows, model.a)


def predict(
    fit: Fit, commands: npt.ArrayLike, measurements: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], Array, Array]:
    """One-step and free-run predictions for a recording: (row numbers, one step ahead, free run), all rows.

    Outside the linear range this shows what the model would say there, not what it was fitted to.
    """
    u, y = signals(commands, measurements)
    lag, na, nb = fit.model.delay + (fit.align == "next"), len(fit.model.a), len(fit.model.b)
    rows = usable_rows(u, y, lag, na, nb)
    columns, target = regressors(u, y, rows, lag, na, nb)
    one_step = target - one_step_residuals(fit.model, columns, target)
    free = [float(x) for x in y[: rows[0]][-na:]]
    drive = sum(b * column for b, column in zip(fit.model.b, columns[na:], strict=True)) + fit.model.offset
    for value in np.asarray(drive).tolist():
        free.append(sum(a * past for a, past in zip(fit.model.a, reversed(free[-na:]), strict=True)) + value)
    return rows, one_step, np.array(free[na:])


def _candidate_lags(delay: int | str, align: str, max_delay: int) -> list[int]:
    delays = range(max_delay + 1) if isinstance(delay, str) else (delay,)
    shifts = {"same": (0,), "next": (1,)}.get(align, (0, 1))
    return sorted({d + shift for d in delays for shift in shifts})


def _named(lag: int, delay: int | str, align: Alignment | Literal["auto"]) -> tuple[Alignment, int]:
    """Alignment and delay of a lag; where both are open, the pair with the smaller delay."""
    if align != "auto":
        return align, lag - (align == "next")
    if isinstance(delay, int):
        return ("same", delay) if lag == delay else ("next", delay)
    return ("same", 0) if lag == 0 else ("next", lag - 1)


# ── what the data and the result are worth ─────────────────────────────────────────────────────────────────────


def _check_options(
    na: int, nb: int, delay: int | str, align: str, max_delay: int, confidence_level: float
) -> None:
    if na < 1 or nb < 1:
        raise InvalidValue(f"a model needs na >= 1 and nb >= 1 terms, got na={na}, nb={nb}")
    if delay != "auto" and (not isinstance(delay, int) or delay < 0):
        raise InvalidValue(f"delay must be a number of samples >= 0, or 'auto', got {delay!r}")
    if align not in ("same", "next", "auto"):
        raise InvalidValue(f"align must be 'same', 'next' or 'auto', got {align!r}")
    if max_delay < 0:
        raise InvalidValue(f"max_delay must be a number of samples >= 0, got {max_delay}")
    if not 0.0 < confidence_level < 1.0:
        raise InvalidValue(f"confidence_level must be between 0 and 1, got {confidence_level}")


def _confidence(
    solution: Solution, na: int, nb: int, offset: bool, level: float
) -> dict[str, tuple[float, float]]:
    names = [*_names("a", na), *_names("b", nb), *(["c"] if offset else [])]
    t = float(stdtrit(max(1, solution.degrees_of_freedom), 0.5 + level / 2.0))
    deviations = np.sqrt(np.maximum(np.diagonal(solution.covariance), 0.0))
    if not np.isfinite(solution.condition):  # some combination of the coefficients can be anything
        deviations = np.full(deviations.size, np.inf)
    return {
        name: (float(value - t * deviation), float(value + t * deviation))
        for name, value, deviation in zip(names, solution.coefficients, deviations, strict=True)
    }


def _names(letter: str, count: int) -> list[str]:
    return [letter] if count == 1 else [f"{letter}{i + 1}" for i in range(count)]


def _ambiguous(lag: int, rivals: tuple[int, ...], delay: int | str, align: Alignment | Literal["auto"]) -> str:
    chosen, *others = (f"{a} {d}" for a, d in (_named(one, delay, align) for one in (lag, *rivals)))
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return (
        f"alignment and delay {chosen} were chosen, but the data fit {', '.join(others[:2])}{more} as well; "
        "give them, or record with an input that changes irregularly"
    )
