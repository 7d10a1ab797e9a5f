"""Does a loop stay stable for every model that the data allow, not only for the best one?

Identification gives the coefficients θ = (a₁ … aₙ, b₁ … bₘ) with a covariance Σ. The models that the data allow
at a confidence level are the ellipsoid (θ' − θ)ᵀ·Σ⁻¹·(θ' − θ) <= χ², the quantile for as many degrees of freedom
as there are coefficients. Its surface and its middle shell are tried: for two coefficients points all round the
ellipse, for more the ends of every axis and of every diagonal between axes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import toeplitz
from scipy.special import chdtri

from flyball.control.gains import AnyGains, FilteredGains
from flyball.control.models import Array, Arx
from flyball.control.polynomials import radii
from flyball.errors import InvalidValue

_ROUND = 32  # points round an ellipse; neighbours are then within 2 % of the surface between them
_MOST_AXES = 8  # diagonals double with every axis: beyond this the axes alone are tried


@dataclass(frozen=True, slots=True)
class Robustness:
    """How many of the models tried stay stable, and the worst pole radius among them, with its model."""

    confidence: float
    models: int
    stable_fraction: float
    worst_radius: float
    worst_plant: Arx


def robustness(
    plant: Arx, gains: AnyGains | FilteredGains, covariance: npt.ArrayLike, confidence: float = 0.95
) -> Robustness:
    """Try the loop on the models of the confidence region; a covariance may carry the offset as its last row.

    >>> from flyball.control.gains import Gains
    >>> from flyball.control.models import first_order
    >>> robustness(first_order(0.26, 59.73), Gains(-0.0016, 0.006), [[0.01, 0], [0, 25]]).stable_fraction
    1.0
    """
    coefficients = np.array([*plant.a, *plant.b])
    axes = _axes(np.asarray(covariance, dtype=float), coefficients.size, confidence)
    directions = _directions(coefficients.size)
    tried = coefficients + np.concatenate([directions, directions / 2.0]) @ axes.T
    controller = gains.polynomials()
    # One matrix product per polynomial instead of a convolution per model.
    n = plant.order
    open_loop = np.hstack([np.ones((len(tried), 1)), -tried[:, :n]]) @ _convolution(controller.denominator, n + 1)
    pushed = tried[:, n:] @ _convolution(controller.feedback, tried.shape[1] - n)
    size = controller.denominator.size - 1 + max(n, plant.delay + len(plant.b)) + 1
    characteristic = np.zeros((len(tried), size))
    characteristic[:, : open_loop.shape[1]] += open_loop  # both are polynomials in 1/z: aligned at the left,
    start = plant.delay + 1  # and the numerator begins with b₁·z^(−delay−1)
    characteristic[:, start : start + pushed.shape[1]] += pushed
    radius = radii(characteristic)
    worst = int(np.argmax(radius))
    return Robustness(
        confidence,
        len(tried),
        float(np.mean(radius < 1.0)),
        float(radius[worst]),
        Arx(tuple(map(float, tried[worst, :n])), tuple(map(float, tried[worst, n:])), plant.delay, plant.offset),
    )


def _axes(covariance: Array, size: int, confidence: float) -> Array:
    """Half axes of the ellipsoid as columns."""
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1] or covariance.shape[0] < size:
        raise InvalidValue(
            f"the covariance must be a square matrix for the {size} coefficients a and b, got {covariance.shape}"
        )
    if not 0.0 < confidence < 1.0:
        raise InvalidValue(f"confidence must be a fraction between 0 and 1, got {confidence}")
    covariance = covariance[:size, :size]
    if not np.all(np.isfinite(covariance)):
        raise InvalidValue(
            "the covariance must be finite; identify the model from more data, with larger changes of the input"
        )
    # Scaled to unit variances first: a and b often differ by orders of magnitude.
    deviation = np.sqrt(np.clip(np.diag(covariance), 0.0, None))
    scale = np.where(deviation > 0.0, deviation, 1.0)
    variances, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    reach = math.sqrt(float(chdtri(size, 1.0 - confidence)))
    return np.asarray(scale[:, None] * vectors * (reach * np.sqrt(np.clip(variances, 0.0, None))))


def _directions(size: int) -> Array:
    if size == 2:
        angles = np.arange(_ROUND) * (2.0 * math.pi / _ROUND)
        return np.column_stack([np.cos(angles), np.sin(angles)])
    axes = np.vstack([np.eye(size), -np.eye(size)])
    if size > _MOST_AXES:
        return axes
    diagonals = np.array(list(itertools.product((-1.0, 1.0), repeat=size))) / math.sqrt(size)
    return np.vstack([axes, diagonals])


def _convolution(kernel: Array, length: int) -> Array:
    """The matrix M with row @ M = np.convolve(row, kernel) for rows of this length."""
    first_row = np.concatenate([kernel, np.zeros(length - 1)])
    first_column = np.zeros(length)
    first_column[0] = kernel[0]
    return np.asarray(toeplitz(first_column, first_row), dtype=float)
