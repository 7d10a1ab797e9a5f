"""Recorded data → model, with the evidence for it.

`identify` fits y(k+1) = a·y(k) + b·u(k−D) + c (or more terms of each) by least squares as the prefetch paper does,
and finds out what a recording does not say by itself:

alignment  `same`: a row's output was measured under that row's input; `next`: under the previous row's (as in the
           prefetch paper). A row of the model needs u(k−D) beside y(k+1), so in rows the input lags the output
           by D (`same`) or D + 1 (`next`): one lag covers both, and `fitting.Task.fit` finds it.
range      the inputs between which the plant is linear; the model is fitted to rows inside it.

The result says how far to trust it: covariance and confidence intervals, R² one step ahead and in a free run,
whiteness of the residuals, and warnings in words. Data that cannot hold an answer (constant input, too few
samples, missing numbers) are errors; a poor or unstable fit is a result with warnings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from flyball.control.identification.checks import NAMES, check_movement, check_size, signals
from flyball.control.identification.diagnostics import doubts_about
from flyball.control.identification.feedback import answers_output, check_exact, is_controller_turned_round
from flyball.control.identification.fitting import Found, Task
from flyball.control.identification.innovations import is_predictable
from flyball.control.identification.least_squares import Solution
from flyball.control.identification.output_error import refine
from flyball.control.identification.regressors import one_step_residuals, regressors, rows_inside, usable_rows
from flyball.control.identification.residuals import Score, Whiteness, score, whiteness
from flyball.control.models import Array, Arx
from flyball.errors import InvalidValue

Alignment: TypeAlias = Literal["same", "next"]
Method: TypeAlias = Literal["least squares", "output error"]

_CANNOT_TELL = "an input that is smooth or periodic cannot tell the delay"
_EXCITE = "record with an input that changes irregularly, such as signals.prbs"


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
    method: Method = "least squares"
    """`output error` where the sensor's noise would have biased least squares."""
    design_delay: int = 0
    """The delay to design for: an output that answers the row before at once looks as one that answers its own row
    one sample late. Where the recording does not say which (align and delay `auto`), it is the larger one."""

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
    gaps: bool = False,
    method: Literal["auto", "least squares"] = "auto",
    max_delay: int = 10,
    confidence_level: float = 0.95,
    names: tuple[str, str] = NAMES,
) -> Fit:
    """Fit an ARX model to one recording, a command and a measurement in each row.

    With `gaps`, a value that is not a number is a missing one, and no equation spans it; several recordings of one
    plant are joined by `regressors.join_recordings`. `whole_range` skips the search for the linear range: the
    model then describes all rows. `method` "least squares" takes the fit with the least one-step error as it is:
    no look for feedback, no free runs. `names` is what complaints call the two series.

    >>> u = np.array([5.0, 5, 9, 9, 2, 2, 7, 3, 3, 8, 8, 1, 6, 6, 4])
    >>> y = Arx((0.26,), (59.73,)).simulate(u)
    >>> fit = identify(u, y)
    >>> round(fit.model.a[0], 4), round(fit.model.b[0], 2), fit.model.delay, fit.align
    (0.26, 59.73, 0, 'same')
    """
    raw_u, raw_y = signals(commands, measurements, names, gaps=gaps)
    _check_options(na, nb, delay, align, max_delay, confidence_level)
    present = int(np.count_nonzero(np.isfinite(raw_u) & np.isfinite(raw_y)))
    candidates = _candidate_lags(delay, align, min(max_delay, present // 5))
    check_size(present, candidates, na, nb, offset)
    low, high = check_movement(raw_u, raw_y, names)
    task = Task(raw_u, raw_y, na, nb, offset, whole_range, (low, high))
    if task.rows(candidates[-1]).size < 2 * (na + nb + int(offset)):
        raise InvalidValue(
            f"the gaps leave {task.rows(candidates[-1]).size} rows with all that a lag of {candidates[-1]} needs; "
            "record longer stretches without a gap, or give a smaller delay"
        )
    if method == "least squares":
        return _result(task, task.fit_best(candidates), [], (delay, align), confidence_level, present, method)
    found = task.fit(candidates)
    warnings: list[str] = []
    if align == "auto" and found.lag == 0 and any(candidates[1:]):
        later = [lag for lag in candidates if lag > 0]
        check_exact(found.solution, found.quality.r2, task.solution(later[0]), names, found.model.a[0])
        other = task.fit(later)
        is_feedback = is_controller_turned_round(found.solution, other.solution, at=na) or answers_output(
            raw_u, found.solution.residuals, found.rows, lag=0
        )
        # A few rows show either sign by chance: the other reading has to make sense, too.
        if is_feedback and other.model.is_stable:
            found, candidates = other, later
            warnings.append(
                "the input answers the output (feedback), so rows are read as in loop telemetry, an output under "
                "the previous row's input: read within a row, the fit would be the controller turned round"
            )
        elif not found.white.white and abs(found.model.a[0]) < 3.0 * _deviation(found.solution, 0):
            warnings.append(
                "the output follows the input of its own row at once, and what is left is not noise: if a "
                "controller set the input, this is the controller turned round; give the alignment"
            )
    if not warnings and answers_output(raw_u, found.solution.residuals, found.rows, lag=found.lag):
        warnings.append(
            "the input answers the output (feedback): the model is right only if the residuals are white and the "
            "delay is; an open-loop recording, or a probing signal on the command, is better"
        )
    if delay == "auto" and not found.rivals and is_predictable(raw_u):
        warnings.append(f"{_CANNOT_TELL}, so the delay rests on the model's order alone; give it, or {_EXCITE}")
    return _result(task, found, warnings, (delay, align), confidence_level, present, method)


def _deviation(solution: Solution, at: int) -> float:
    return float(np.sqrt(max(solution.covariance[at, at], 0.0)))


def _result(
    task: Task,
    found: Found,
    warnings: list[str],
    asked: tuple[int | Literal["auto"], Alignment | Literal["auto"]],
    level: float,
    present: int,
    allowed: Literal["auto", "least squares"],
) -> Fit:
    rows, span, solution = found.rows, found.span, found.solution
    align, delay = _named(found.lag, *asked)
    warnings += found.warnings
    if found.rivals:
        warnings.append(_ambiguous(found.lag, found.rivals, *asked))
    if span.bends:
        warnings.append(
            f"linear only for inputs from {span.low:g} to {span.high:g}: "
            f"the fit uses {rows.size} of {present} rows"
        )
    refined = None
    if allowed != "least squares" and task.na == task.nb == 1 and not found.white.white:
        refined = refine(task.u, task.y, rows, found.lag, found.model, offset=task.offset)
    model, quality, white = found.model, found.quality, found.white
    covariance, noise_variance = solution.covariance, solution.noise_variance
    columns, target = regressors(task.u, task.y, rows, found.lag, task.na, task.nb)
    method: Method = "least squares"
    if refined is not None:
        spread = float(target.std()) ** 2 * target.size
        errors = whiteness(refined.errors, rows, fitted=1, scale=float(target.std()))
        # Its own errors must be nearer to noise, and not by the search's freedom alone fewer.
        if errors.p_value > white.p_value and refined.squared_error < 0.95 * (1.0 - quality.r2_free_run) * spread:
            theta = [float(x) for x in refined.coefficients]
            model = Arx((theta[0],), (theta[1],), 0, theta[2] if task.offset else 0.0)
            quality = score(one_step_residuals(model, columns, target), target, rows, model.a)
            quality = replace(quality, r2_free_run=1.0 - refined.squared_error / spread if spread else 1.0)
            covariance, noise_variance, white = refined.covariance, refined.noise_variance, errors
            method = "output error"
    solution = replace(
        solution,
        coefficients=np.array([*model.a, *model.b, model.offset][: solution.coefficients.size]),
        covariance=covariance,
    )
    model = replace(model, delay=delay)
    confidence = _confidence(solution, task.na, task.nb, task.offset, level)
    warnings += doubts_about(model, quality, white, confidence, solution, task.u[rows - found.lag])
    return Fit(
        model=model,
        align=align,
        offset=task.offset,
        covariance=covariance,
        confidence=MappingProxyType(confidence),
        confidence_level=level,
        noise_std=float(np.sqrt(noise_variance)),
        linear_range=(span.low, span.high),
        score=quality,
        whiteness=white,
        condition=solution.condition,
        warnings=tuple(warnings),
        method=method,
        design_delay=found.lag if asked[1] == "auto" and asked[0] == "auto" else delay,
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
        f"{_CANNOT_TELL}; give them, or {_EXCITE}"
    )
