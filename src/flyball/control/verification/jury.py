"""The Jury test: are all roots of a polynomial inside the unit circle, decided without computing a root.

Each step divides the last coefficient by the first, k = aₙ/a₀. The product of all roots is ±k, so |k| >= 1 means
that one of them is not inside. Else a(z) − k·zⁿ·a(1/z) has its last coefficient zero, and by Rouché's theorem as
many roots inside the circle as a(z), for |k·zⁿ·a(1/z)| < |a(z)| on the circle: drop the zero and repeat with one
degree less. The polynomial is stable if and only if every k is inside (−1, 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Jury:
    """The outcome, and the ratios k (n of them when stable; up to the first that is too large when not)."""

    stable: bool
    ratios: tuple[float, ...]


def jury(polynomial: Sequence[float]) -> Jury:
    """Test a polynomial given by its coefficients, highest power first.

    >>> jury([1.0, -1.0, 0.5])
    Jury(stable=True, ratios=(0.5, -0.6666666666666666))
    >>> jury([1.0, -2.5, 1.0]).stable  # roots 2 and 1/2
    False
    """
    row = [float(coefficient) for coefficient in polynomial]
    while row and row[0] == 0.0:
        row.pop(0)
    if not row or not all(map(math.isfinite, row)):
        raise InvalidValue(
            f"the Jury test needs finite coefficients that are not all zero, got {list(polynomial)}"
        )
    ratios: list[float] = []
    while len(row) > 1:
        ratio = row[-1] / row[0]
        ratios.append(ratio)
        if not abs(ratio) < 1.0:
            return Jury(False, tuple(ratios))
        row = [ahead - ratio * behind for ahead, behind in zip(row[:-1], reversed(row[1:]), strict=True)]
    return Jury(True, tuple(ratios))
