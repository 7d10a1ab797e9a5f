"""Many recordings → a model for each, at once: `identify` for a million series, in a few passes over arrays.

Each series is fitted to y(k+1) = a·y(k) + b·u(k−D) + c over its whole range, by the same formulas as `identify`
with the method "least squares". All samples stand one series after the other, so a sum over every series is one
call of `np.add.reduceat`; with the sums of squares and products of past output x, input u and output z, centred,
the model of each series is

    det = Sxx·Suu − Sxu²,   a = (Suu·Sxz − Sxu·Suz)/det,   b = (Sxx·Suz − Sxu·Sxz)/det,   c = z̄ − a·x̄ − b·ū.

The input's lag is chosen as `delay.choose_lag` does it: by the error on rows that all candidates explain, and of
those that the data cannot tell apart the smallest. What cannot be fitted has a problem in words and no model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.special import stdtrit

from flyball.control.models import Array

Index: TypeAlias = npt.NDArray[np.int64]

_INDISTINGUISHABLE = 2.0
_RANK_TOLERANCE = 1e-12
_MAX_DELAY = 10
_LONG = 2_000  # a free run steps through short series side by side, and through each long one alone


@dataclass(frozen=True, eq=False)
class Fits:
    """A value a series; NaN (lag: −1) where there is a `problem`."""

    a: Array
    b: Array
    c: Array
    a_error: Array
    """Half the width of the 95 % confidence interval."""
    b_error: Array
    lag: Index
    """By how many rows the input is ahead of the output it acts on."""
    r2: Array
    r2_free_run: Array
    rmse: Array
    samples: Index
    """Rows that the model was fitted to."""
    problem: npt.NDArray[Any]


def identify_many(
    u: Array,
    y: Array,
    starts: Index,
    *,
    delay: int | Literal["auto"] = "auto",
    align: Literal["same", "next", "auto"] = "auto",
    offset: bool = True,
) -> Fits:
    """Fit all series; series i has the samples starts[i] … starts[i+1]−1 (the last one: to the end)."""
    sizes = np.diff(np.append(starts, u.size)).astype(np.int64)
    result = _empty(sizes.size)
    _note_problems(u, y, starts, sizes, result)
    parameters = 2 + int(offset)
    longest = np.minimum(_MAX_DELAY, sizes // 5)
    for reach in np.unique(longest):
        lags = _candidates(delay, align, int(reach))
        needed = 2 * parameters + max(1, lags[-1])
        same = longest == reach
        result.problem[same & (sizes < needed) & (result.problem == "")] = f"fewer than {needed} samples"
        chosen = np.flatnonzero(same & (result.problem == ""))
        if chosen.size:
            _fit(_Part(u, y, starts, sizes, chosen), lags, offset, result, chosen)
    return result


def _candidates(delay: int | str, align: str, reach: int) -> list[int]:
    delays = range(reach + 1) if isinstance(delay, str) else (delay,)
    shifts = {"same": (0,), "next": (1,)}.get(align, (0, 1))
    return sorted({d + shift for d in delays for shift in shifts})


def _empty(count: int) -> Fits:
    made: dict[str, Any] = {field.name: np.full(count, np.nan) for field in fields(Fits)}
    made |= {"lag": np.full(count, -1), "samples": np.zeros(count, np.int64)}
    return Fits(**{**made, "problem": np.full(count, "", dtype=object)})


def _note_problems(u: Array, y: Array, starts: Index, sizes: Index, result: Fits) -> None:
    if not sizes.size:
        return
    for name, signal in (("output", y), ("input", u)):
        still = np.minimum.reduceat(signal, starts) == np.maximum.reduceat(signal, starts)
        result.problem[still] = f"the {name} is constant"
    for name, signal in (("output", y), ("input", u)):
        holes = np.add.reduceat(~np.isfinite(signal), starts) > 0
        result.problem[holes] = f"the {name} is not a number everywhere"


class _Part:
    """A selection of the series, with what is needed to sum over each."""

    def __init__(self, u: Array, y: Array, starts: Index, sizes: Index, chosen: Index) -> None:
        self.sizes = sizes[chosen]
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self.position = np.arange(int(self.sizes.sum())) - np.repeat(self.starts, self.sizes)
        rows = np.repeat(starts[chosen], self.sizes) + self.position
        self.u_mean = np.add.reduceat(u[rows], self.starts) / self.sizes
        self.y_mean = np.add.reduceat(y[rows], self.starts) / self.sizes
        self.u, self.y = u[rows], y[rows]

    def centred(self) -> None:
        self.u = self.u - np.repeat(self.u_mean, self.sizes)
        self.y = self.y - np.repeat(self.y_mean, self.sizes)

    def columns(self, lag: int, first: int) -> tuple[Array, Array, Array, Index]:
        """y(k), u(k−D) and y(k+1) of the rows from number `first` of each series, and where series begin."""
        rows = np.flatnonzero(self.position >= first)
        counts = self.sizes - first
        return self.y[rows - 1], self.u[rows - lag], self.y[rows], np.concatenate([[0], np.cumsum(counts)[:-1]])


@dataclass(frozen=True, eq=False)
class _Moments:
    """Means and centred sums of squares and products; without an offset the means are 0 by decision."""

    x: Array
    u: Array
    z: Array
    xx: Array
    uu: Array
    zz: Array
    xu: Array
    xz: Array
    uz: Array


def _moments(x: Array, u: Array, z: Array, at: Index, counts: Index, offset: bool) -> _Moments:
    def total(values: Array) -> Array:
        return np.asarray(np.add.reduceat(values, at), dtype=float)

    means = [total(column) / counts if offset else np.zeros(at.size) for column in (x, u, z)]
    if offset:
        x, u, z = (column - np.repeat(mean, counts) for column, mean in zip((x, u, z), means, strict=True))
    products = [total(left * right) for left, right in ((x, x), (u, u), (z, z), (x, u), (x, z), (u, z))]
    return _Moments(*means, *products)


def _fit(part: _Part, lags: list[int], offset: bool, result: Fits, chosen: Index) -> None:
    if offset:
        part.centred()
    lag = np.full(chosen.size, lags[0])
    if len(lags) > 1:
        lag = _choose_lags(part, lags, offset)
    for one in np.unique(lag):
        here = np.flatnonzero(lag == one)
        sub = part
        if here.size < chosen.size:
            sub = _Part(part.u, part.y, part.starts, part.sizes, here)
        means = (part.u_mean[here], part.y_mean[here]) if offset else None
        _solve(sub, int(one), means, result, chosen[here])


def _choose_lags(part: _Part, lags: list[int], offset: bool) -> Index:
    first = max(1, lags[-1])
    counts = part.sizes - first
    criteria = np.empty((len(lags), part.sizes.size))
    for row, lag in enumerate(lags):
        x, u, z, at = part.columns(lag, first)
        m = _moments(x, u, z, at, counts, offset)
        with np.errstate(divide="ignore", invalid="ignore"):
            r, p, q = (
                np.nan_to_num(left / np.sqrt(right))
                for left, right in ((m.xu, m.xx * m.uu), (m.xz, m.xx * m.zz), (m.uz, m.uu * m.zz))
            )
            both = (p * p + q * q - 2.0 * r * p * q) / (1.0 - r * r)
        explained = np.where(1.0 - r * r > _RANK_TOLERANCE, both, np.maximum(p * p, q * q))
        error = np.maximum(np.maximum(1.0 - explained, 1e-13) * m.zz, 1e-300)
        criteria[row] = counts * np.log(error / counts)  # as many parameters for every lag: their cost cancels
    near = criteria - criteria.min(axis=0) <= _INDISTINGUISHABLE
    best: Index = np.asarray(lags)[near.argmax(axis=0)]
    return best


def _solve(part: _Part, lag: int, means: tuple[Array, Array] | None, result: Fits, chosen: Index) -> None:
    first = max(1, lag)
    counts = part.sizes - first
    x, u, z, at = part.columns(lag, first)
    m = _moments(x, u, z, at, counts, means is not None)
    det = m.xx * m.uu - m.xu**2
    ill = det <= _RANK_TOLERANCE * m.xx * m.uu
    with np.errstate(divide="ignore", invalid="ignore"):
        a = (m.uu * m.xz - m.xu * m.uz) / det
        b = (m.xx * m.uz - m.xu * m.xz) / det
    c = m.z - a * m.x - b * m.u
    residuals = z - np.repeat(c, counts) - np.repeat(a, counts) * x - np.repeat(b, counts) * u
    squared = np.add.reduceat(residuals**2, at)
    spread = np.add.reduceat((z - np.repeat(np.add.reduceat(z, at) / counts, counts)) ** 2, at)
    free = _free_run_squared(residuals, a, at, counts)
    if means is not None:  # back from centred signals: y − ȳ = a(y₋ − ȳ) + b(u − ū) + c
        c = c + means[1] * (1.0 - a) - b * means[0]
    freedom = counts - 2 - int(means is not None)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = stdtrit(np.maximum(1, freedom), 0.975)
        deviation = np.sqrt(squared / np.maximum(1, freedom))
        columns = {
            "a": a,
            "b": b,
            "c": c,
            "a_error": t * deviation * np.sqrt(m.uu / det),
            "b_error": t * deviation * np.sqrt(m.xx / det),
            "r2": np.where(spread > 0, 1.0 - squared / spread, np.where(squared == 0.0, 1.0, -np.inf)),
            "r2_free_run": np.where(np.isfinite(free) & (spread > 0), 1.0 - free / spread, -np.inf),
            "rmse": np.sqrt(squared / counts),
        }
    for name, values in columns.items():
        getattr(result, name)[chosen] = np.where(ill, np.nan, values)
    result.lag[chosen] = np.where(ill, -1, lag)
    result.samples[chosen] = np.where(ill, 0, counts)
    result.problem[chosen[ill]] = "past output and input move together: a and b cannot be distinguished"


def _free_run_squared(residuals: Array, a: Array, at: Index, counts: Index) -> Array:
    """Σe² of the free run, whose error is e(k+1) = a·e(k) + r(k+1)."""
    squared = np.zeros(at.size)
    with np.errstate(over="ignore", invalid="ignore"):
        for long in np.flatnonzero(counts > _LONG):
            part = residuals[at[long] : at[long] + counts[long]]
            squared[long] = np.sum(np.asarray(lfilter([1.0], [1.0, -a[long]], part)) ** 2)
        running = np.flatnonzero(counts <= _LONG)
        error = np.zeros(running.size)
        for k in range(int(counts[running].max(initial=0))):
            going = counts[running] > k
            if not going.all():
                running, error = running[going], error[going]
            error = a[running] * error + residuals[at[running] + k]
            squared[running] += error**2
    return squared
