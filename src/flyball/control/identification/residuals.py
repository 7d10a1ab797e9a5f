"""What a model leaves unexplained: RMSE, R² (one step and free run) and whether the rest is white noise.

One step ahead, a model starts every prediction from the measured output; in a free run it starts once and then
lives on its own outputs. The second is the harder and the more honest test, for a large `a` alone makes one-step
predictions look good.

The error of a free run follows from the one-step residuals r without simulating: subtracting the model's
ŷ(k+1) = Σaᵢ·ŷ(k−i+1) + … from the data gives e(k+1) = Σaᵢ·e(k−i+1) + r(k+1), the residuals filtered by 1/A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.special import chdtrc

from flyball.control.identification.least_squares import BLOCK, inner
from flyball.control.models import Array

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts some data. R² is 1 for a perfect model and 0 for one no better than the mean."""

    r2: float
    rmse: float
    r2_free_run: float
    samples: int


@dataclass(frozen=True, slots=True)
class Whiteness:
    """Ljung–Box test: `white` is false where chance gives such residuals in fewer than 1 of 100 data sets."""

    statistic: float
    p_value: float
    lags: int
    white: bool


def score(residuals: Array, targets: Array, rows: Rows, a: Sequence[float]) -> Score:
    """Score one-step residuals of `targets`; `rows` are their sample numbers, a gap restarts the free run."""
    centred = targets - targets.mean()
    spread = inner(centred, centred)
    one_step = inner(residuals, residuals)
    free = free_run_errors(residuals, rows, a)
    with np.errstate(over="ignore", invalid="ignore"):
        free_run = inner(free, free)
    return Score(
        r2=_r2(one_step, spread),
        rmse=float(np.sqrt(one_step / residuals.size)),
        r2_free_run=_r2(free_run, spread),
        samples=int(residuals.size),
    )


def _r2(squared_error: float, spread: float) -> float:
    if not np.isfinite(squared_error):
        return -np.inf  # the free run of an unstable model leaves the range of numbers
    if spread == 0.0:
        return 1.0 if squared_error == 0.0 else -np.inf
    return 1.0 - squared_error / spread


def free_run_errors(residuals: Array, rows: Rows, a: Sequence[float]) -> Array:
    denominator = np.array([1.0, *(-x for x in a)])
    starts = np.flatnonzero(np.diff(rows) != 1) + 1
    with np.errstate(over="ignore", invalid="ignore"):
        pieces = [np.asarray(lfilter([1.0], denominator, part)) for part in np.split(residuals, starts)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def whiteness(residuals: Array, rows: Rows, *, fitted: int, scale: float, level: float = 0.01) -> Whiteness:
    """Ljung–Box: Q = (n+2)/n · Σ_j n_j·ρ_j², which is χ² distributed for white residuals.

    ρ_j is the autocorrelation at lag j over the n_j pairs of rows that are j apart (for rows without gaps this is
    the usual n(n+2)·Σρ²/(n−j)). `fitted` output lags were estimated from the data and cost one degree of freedom
    each. Residuals below rounding of `scale`, the size of the output, count as white: nothing is left in them.
    """
    n = residuals.size
    lags = max(fitted + 1, min(10, n // 5))
    centred = residuals - residuals.mean()
    variance = inner(centred, centred) / n
    if variance <= (1e-9 * scale) ** 2:
        return Whiteness(0.0, 1.0, lags, True)
    gapless = bool(rows[-1] - rows[0] == n - 1)
    if not gapless:
        filled = np.zeros(int(rows[-1] - rows[0]) + 1)
        present = np.zeros(filled.size)
        filled[rows - rows[0]] = centred
        present[rows - rows[0]] = 1.0
    else:
        filled, present = centred, np.empty(0)
    products = _autocorrelation(filled, lags)
    pairs = n - np.arange(1.0, lags + 1.0) if gapless else _autocorrelation(present, lags)
    correlations = products / np.maximum(pairs, 1.0) / variance
    statistic = (n + 2) / n * float(np.sum(pairs * correlations**2))
    p_value = float(chdtrc(lags - fitted, statistic))
    return Whiteness(statistic, p_value, lags, p_value >= level)


def _autocorrelation(signal: Array, lags: int) -> Array:
    """Σ x(k)·x(k−j) for j = 1 … lags."""
    sums = np.zeros(lags)
    for start in range(0, signal.size, BLOCK):
        stop = min(start + BLOCK, signal.size)
        for lag in range(1, lags + 1):
            first = max(start, lag)
            if first < stop:
                sums[lag - 1] += inner(signal[first:stop], signal[first - lag : stop - lag])
    return sums
