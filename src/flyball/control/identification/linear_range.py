"""The part of the input's range in which a linear model holds (in the prefetch paper up to a count of 22).

A plant that saturates, or has a dead zone, bends where the input passes some value h. Adding a hinge,

    y(k+1) = a·y(k) + b·u(k−D) + d·max(0, u(k−D) − h) + c,

describes such a plant exactly, with slope b below h and b + d above. For each candidate h this is a small
least-squares problem, and with the rows sorted by input all of them follow from cumulative sums. The bend counts
where the Bayesian information criterion favours it strongly (by 6 or more, after paying for d and h) and the slope
changes by at least a quarter. Then the steeper side is used, for there the actuator has authority, and searched
again, so that a curve that flattens at several inputs is cut back to its first straight part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball.control.identification.least_squares import gram_matrix, squared_error_of
from flyball.control.identification.residuals import Rows
from flyball.control.models import Array

_STRONG_EVIDENCE = 6.0
_SLOPE_CHANGE = 0.25
_MAX_CANDIDATES = 128
_MAX_CUTS = 4
# A bend that so many rows do not show is too small to matter; more rows would only cost time.
_MAX_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class LinearRange:
    low: float
    high: float
    bends: tuple[float, ...]
    """Inputs at which the plant was found to bend, in the order in which they were found."""


def linear_range(
    drive: Array, others: Sequence[Array], target: Array, *, whole: tuple[float, float] | None = None
) -> LinearRange:
    """Search the range of `drive`, the input that acts on `target`, given the `others`, its further regressors.

    `whole` is reported as the ends that no bend cuts off (default: the extremes of `drive`).

    >>> u = np.tile(np.arange(1.0, 41.0), 5)
    >>> linear_range(u, [], 3.0 * np.minimum(u, 22.0) + 0.1 * np.sin(7.0 * u)).high
    22.0
    """
    low, high = whole or (float(drive.min()), float(drive.max()))
    if target.size > _MAX_ROWS:
        # One row of each of equal stretches; multiples of the golden ratio share no period with any experiment.
        stretches = np.arange(_MAX_ROWS)
        picked = ((stretches + stretches * 0.6180339887498949 % 1.0) * (target.size / _MAX_ROWS)).astype(np.int64)
        drive, others, target = drive[picked], [column[picked] for column in others], target[picked]
    order = np.argsort(drive, kind="stable")
    drive, target = drive[order], target[order]
    others = [column[order] for column in others]
    bends: list[float] = []
    for _ in range(_MAX_CUTS):
        bend = _find_bend(drive, others, target)
        if bend is None:
            break
        h, keep_below = bend
        bends.append(h)
        selected = drive <= h if keep_below else drive >= h
        drive, target = drive[selected], target[selected]
        others = [column[selected] for column in others]
        low, high = (low, float(drive[-1])) if keep_below else (float(drive[0]), high)
    return LinearRange(low, high, tuple(bends))


def _find_bend(drive: Array, others: Sequence[Array], target: Array) -> tuple[float, bool] | None:
    """The strongest bend of rows sorted by drive, and whether the part below it is steeper; None: straight."""
    n = target.size
    fewest = max(5, n // 20, len(others) + 3)
    if n < 2 * fewest + 2:
        return None
    candidates = _candidates(drive, fewest)
    if candidates.size == 0:
        return None
    middle, size = float(drive.mean()), float(drive.std())
    u = (drive - middle) / size
    columns = np.stack([u, *(column - column.mean() for column in others), target - target.mean()])
    gram = gram_matrix(columns)
    # Sums over the rows above each candidate, of every column x and of u·x: Σ max(0, u−h)·x = Σu·x − h·Σx.
    above = drive.searchsorted(candidates, side="right")
    tail_x = _tails(columns, above)
    tail_ux = _tails(columns * u, above)
    tail_1 = (n - above).astype(float)
    h = (candidates - middle) / size
    hinge_x = tail_ux - h * tail_x
    hinge_1 = tail_x[0] - h * tail_1
    hinge_2 = tail_ux[0] - 2.0 * h * tail_x[0] + h * h * tail_1 - hinge_1**2 / n  # columns have mean 0, hinges not
    straight = squared_error_of(gram)
    if straight == 0.0:  # the output does not move at all here
        return None
    p = columns.shape[0] - 1
    errors = np.empty(candidates.size)
    grams = []
    for i in range(candidates.size):
        bent = np.empty((p + 2, p + 2))
        bent[1:, 1:] = gram
        bent[0, 0] = hinge_2[i]
        bent[0, 1:] = bent[1:, 0] = hinge_x[:, i]
        grams.append(bent)
        errors[i] = squared_error_of(bent)
    best = int(np.argmin(errors))
    free = n - p - 3  # in place of n, for p, the offset, d and h are all fitted: few rows must not look like many
    if free * np.log(straight / errors[best]) - 2.0 * np.log(n) < _STRONG_EVIDENCE:
        return None
    d, below = np.linalg.lstsq(grams[best][:-1, :-1], grams[best][:-1, -1], rcond=None)[0][:2]
    steeper = max(abs(below), abs(below + d))
    if abs(d) < _SLOPE_CHANGE * steeper:
        return None
    return float(candidates[best]), bool(abs(below) >= abs(below + d))


def _candidates(drive: Array, fewest: int) -> Array:
    """Values of the (sorted) drive with at least `fewest` rows and three different values on either side."""
    values = drive[np.concatenate([[True], np.diff(drive) > 0.0])][3:-3]
    values = values[(values >= drive[fewest - 1]) & (values < drive[-fewest])]
    if values.size > _MAX_CANDIDATES:
        values = values[np.linspace(0, values.size - 1, _MAX_CANDIDATES).astype(int)]
    return np.asarray(values)


def _tails(columns: Array, starts: Rows) -> Array:
    """Sums of each column from each start to the end."""
    sums = np.cumsum(columns, axis=1)
    return np.asarray(sums[:, -1:] - sums[:, starts - 1])
