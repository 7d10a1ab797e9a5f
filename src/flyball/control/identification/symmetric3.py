"""Symmetric 3×3 matrices as plain floats: small enough that arrays would only slow them down."""

from __future__ import annotations

from collections.abc import Sequence

Symmetric = tuple[float, float, float, float, float, float]
"""A symmetric 3×3 matrix R: its entries 11, 12, 13, 22, 23, 33."""

_PIVOT_FLOOR = 1e-12  # pivots below this share of their diagonal are rounding errors

Factors = tuple[float, float, float, float, float, float]
"""R = L·D·Lᵀ: d₁, d₂, d₃, l₂₁, l₃₁, l₃₂. Unlike an inverse by cofactors it does not care about units."""


def factor(r: Symmetric) -> Factors:
    r11, r12, r13, r22, r23, r33 = r
    l21, l31 = r12 / r11, r13 / r11
    d2 = max(r22 - l21 * r12, _PIVOT_FLOOR * r22)
    l32 = (r23 - l31 * r12) / d2
    d3 = max(r33 - l31 * r13 - l32 * l32 * d2, _PIVOT_FLOOR * r33)
    return r11, d2, d3, l21, l31, l32


def quadratic(factors: Factors, x: Sequence[float]) -> float:
    """xᵀR⁻¹x."""
    d1, d2, d3, l21, l31, l32 = factors
    z2 = x[1] - l21 * x[0]
    z3 = x[2] - l31 * x[0] - l32 * z2
    return x[0] * x[0] / d1 + z2 * z2 / d2 + z3 * z3 / d3


def solve(factors: Factors, x: Sequence[float]) -> tuple[float, float, float]:
    """R⁻¹x."""
    d1, d2, d3, l21, l31, l32 = factors
    z2 = x[1] - l21 * x[0]
    z3 = x[2] - l31 * x[0] - l32 * z2
    s3 = z3 / d3
    s2 = z2 / d2 - l32 * s3
    return x[0] / d1 - l21 * s2 - l31 * s3, s2, s3
