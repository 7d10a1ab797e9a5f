"""Output-error fit: the model whose free run is nearest to the recording, for plants whose sensor is noisy.

Least squares on y(k+1) = a·y(k) + … takes the noise of a sensor for a movement of the plant: a comes out too
small. A free run never looks at the noisy past output, so its errors hold the sensor's noise once and unmixed, and
the model that makes them smallest is unbiased. It is nonlinear in a; the search starts from least squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from scipy.signal import lfilter, lfiltic

from flyball.control.identification.least_squares import inner
from flyball.control.identification.residuals import Rows
from flyball.control.models import Array, Arx

_MAX_PIECES = 8  # each has an unknown beginning
_MAX_ROWS = 20_000
_SLOWEST = 0.999


@dataclass(frozen=True, eq=False)
class Refined:
    """a, b (and c, where it is estimated), their covariance and the errors of the free run."""

    coefficients: Array
    covariance: Array
    errors: Array
    noise_variance: float

    @property
    def squared_error(self) -> float:
        return inner(self.errors, self.errors)


def refine(u: Array, y: Array, rows: Rows, lag: int, start: Arx, *, offset: bool) -> Refined | None:
    """Refine a first-order model on these rows; None where the rows have too many gaps or nothing is found."""
    pieces = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    if len(pieces) > _MAX_PIECES or rows.size > _MAX_ROWS or not abs(start.a[0]) < _SLOWEST:
        return None
    scale_u = float(u[rows - lag].std()) or 1.0
    scale_y = float(y[rows].std()) or 1.0
    middle_u, middle_y = float(u[rows - lag].mean()) if offset else 0.0, float(y[rows].mean()) if offset else 0.0
    drives = [(u[piece - lag] - middle_u) / scale_u for piece in pieces]
    targets = [(y[piece] - middle_y) / scale_y for piece in pieces]
    count = 2 + int(offset)

    def errors(x: Array) -> Array:
        free = []
        for i, drive in enumerate(drives):
            push = x[1] * drive + (x[2] if offset else 0.0)
            run, _ = lfilter([1.0], [1.0, -x[0]], push, zi=lfiltic([1.0], [1.0, -x[0]], [x[count + i]]))
            free.append(targets[i] - run)
        return np.concatenate(free)

    # Centred: y − ȳ = a·(y₋ − ȳ) + b·(u − ū) + (c − (1 − a)·ȳ + b·ū)
    (a,), (b,) = start.a, start.b
    moved = start.offset - (1.0 - a) * middle_y + b * middle_u
    first = [a, b * scale_u / scale_y, *([moved / scale_y] if offset else []), *(float(t[0]) for t in targets)]
    low, high = np.full(len(first), -np.inf), np.full(len(first), np.inf)
    low[0], high[0] = -_SLOWEST, _SLOWEST
    found = least_squares(errors, np.array(first), bounds=(low, high))
    jacobian = np.asarray(found.jac, dtype=float)  # dense: none of the sparse solvers is asked for
    information = jacobian.T @ jacobian
    if not found.success or np.linalg.cond(information) > 1e12:
        return None
    freedom = max(1, rows.size - found.x.size)
    variance = 2.0 * float(found.cost) / freedom
    inner_covariance = variance * np.linalg.inv(information)[:count, :count]
    return _in_units(
        found.x[:count], inner_covariance, (middle_u, middle_y, scale_u, scale_y), errors(found.x), variance
    )


def _in_units(
    x: Array, covariance: Array, units: tuple[float, float, float, float], errors: Array, variance: float
) -> Refined:
    """Back from centred and scaled signals."""
    middle_u, middle_y, scale_u, scale_y = units
    a, b = float(x[0]), float(x[1]) * scale_y / scale_u
    theta = [a, b]
    change = np.diag([1.0, scale_y / scale_u, *([scale_y] if x.size == 3 else [])])
    if x.size == 3:
        theta.append(float(x[2]) * scale_y + (1.0 - a) * middle_y - b * middle_u)
        change[2, 0], change[2, 1] = -middle_y, -middle_u * scale_y / scale_u
    return Refined(np.array(theta), change @ covariance @ change.T, errors * scale_y, variance * scale_y * scale_y)
