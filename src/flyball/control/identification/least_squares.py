"""Ordinary least squares for models that are linear in their coefficients, with the covariance of the result.

For a target z and regressors x₁ … xₚ (and, with offset, a constant) the coefficients solve the normal equations
(XᵀX)·θ = Xᵀz. Forming XᵀX takes one pass over the data and is several times faster than a decomposition of X,
but squares the condition number. Two things keep it accurate: columns are centred (which also takes the offset
out of the equations) and scaled to unit length, so that only true collinearity is left; and where that is still
severe, the same scaled columns go through a singular value decomposition instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball.control.models import Array

# Numbers that fit into a core's cache, and too few for BLAS to share out among cores.
BLOCK = 8_192
# Correlation matrices worse than this lose more than half of the 16 digits: decompose instead.
_WORST_CONDITION = 1e8
# Directions of the data weaker than this share of the strongest are rounding errors, not information.
_RANK_TOLERANCE = 1e-12


def inner(left: Array, right: Array) -> float:
    """Σ leftᵢ·rightᵢ on one thread.

    The dot product of BLAS splits long vectors over all cores, and on a busy machine then waits many times longer
    for the slowest of them than the sum takes.
    """
    return float(sum(left[i : i + BLOCK] @ right[i : i + BLOCK] for i in range(0, left.size, BLOCK)))


@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients (the offset last, where there is one) and how well they are known."""

    coefficients: Array
    covariance: Array
    residuals: Array
    squared_error: float
    samples: int
    condition: float
    """Condition number of the regressors' correlation matrix; infinite where some cannot be distinguished."""

    @property
    def degrees_of_freedom(self) -> int:
        return self.samples - self.coefficients.size

    @property
    def noise_variance(self) -> float:
        return self.squared_error / max(1, self.degrees_of_freedom)


def gram_matrix(columns: Sequence[Array] | Array) -> Array:
    """All inner products of the columns with each other."""
    gram = np.empty((len(columns), len(columns)))
    for i, left in enumerate(columns):
        for j, right in enumerate(columns[: i + 1]):
            gram[i, j] = gram[j, i] = inner(left, right)
    return gram


def solve(columns: Sequence[Array], target: Array, *, offset: bool) -> Solution:
    """Fit target ≈ Σ θᵢ·columnᵢ (+ offset).

    >>> x = np.array([1.0, 2.0, 3.0, 4.0])
    >>> fit = solve([x], 2.0 * x + 5.0, offset=True)
    >>> fit.coefficients.round(6).tolist()
    [2.0, 5.0]
    """
    count, samples = len(columns), target.size
    stacked = np.empty((count + 1, samples))
    means = np.zeros(count + 1)
    for i, column in enumerate((*columns, target)):
        if offset:
            means[i] = column.mean()
        np.subtract(column, means[i], out=stacked[i])
    gram = gram_matrix(stacked)
    scale = np.sqrt(np.diagonal(gram)[:count])
    scale = np.where(scale > 0.0, scale, 1.0)
    correlation = gram[:count, :count] / np.outer(scale, scale)
    eigenvalues, vectors = np.linalg.eigh(correlation)
    weakest, strongest = float(eigenvalues[0]), float(eigenvalues[-1])
    if weakest > strongest / _WORST_CONDITION:
        condition = strongest / weakest
        scaled = np.linalg.solve(correlation, gram[:count, count] / scale)
        inverse = (vectors / eigenvalues) @ vectors.T
    else:
        left = stacked[:count] / scale[:, None]
        scaled, _, rank, singular = np.linalg.lstsq(left.T, stacked[count], rcond=_RANK_TOLERANCE**0.5)
        condition = float((singular[0] / singular[-1]) ** 2) if rank == count else float("inf")
        # A direction without information has an unbounded variance; the floor keeps it finite and huge. The
        # strongest eigenvalue is at least 1, unless every column is 0.
        floored = np.maximum(eigenvalues, max(strongest, 1.0) * _RANK_TOLERANCE)
        inverse = (vectors / floored) @ vectors.T
    theta = scaled / scale
    residuals = stacked[count]
    for coefficient, column in zip(theta, stacked[:count], strict=True):
        column *= coefficient
        residuals -= column
    squared_error = inner(residuals, residuals)
    parameters = count + int(offset)
    variance = squared_error / max(1, samples - parameters)
    covariance = variance * inverse / np.outer(scale, scale)
    if offset:
        # c = z̄ − θ·x̄ and the mean z̄ is independent of θ, hence var(c) = σ²/n + x̄ᵀ·cov(θ)·x̄, cov(θ, c) = −cov(θ)·x̄.
        x_mean = means[:count]
        with_offset = -covariance @ x_mean
        corner = variance / samples + float(x_mean @ covariance @ x_mean)
        covariance = np.block([[covariance, with_offset[:, None]], [with_offset[None, :], np.array([[corner]])]])
        theta = np.append(theta, means[count] - float(theta @ x_mean))
    return Solution(theta, covariance, residuals, squared_error, samples, condition)


def squared_error_of(gram: Array) -> float:
    """Σ(z − X·θ)² of the best θ, from the Gram matrix of (x₁ … xₚ, z) alone, the target last.

    Meant for comparing candidate models. It cannot see errors below rounding of Σz², hence the floor.
    """
    scale = np.sqrt(np.maximum(np.diagonal(gram), 0.0))  # below 0 by rounding: a column that does not move
    scale = np.where(scale > 0.0, scale, 1.0)
    unit = gram / np.outer(scale, scale)
    scaled = np.linalg.lstsq(unit[:-1, :-1], unit[:-1, -1], rcond=_RANK_TOLERANCE)[0]
    explained = float(scaled @ unit[:-1, -1])
    return max(1.0 - explained, 1e-13) * max(float(gram[-1, -1]), 0.0)
