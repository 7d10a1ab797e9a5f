"""Averages over seeds with their 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A mean and the half width of its 95 % interval."""

    mean: float
    half: float

    def text(self, scale: float = 1.0, digits: int = 0) -> str:
        """
        >>> Interval(0.1451, 0.0012).text(1000, 1)
        '145.1 ± 1.2'
        """
        return f"{self.mean * scale:.{digits}f} ± {self.half * scale:.{digits}f}"


def interval(values: Sequence[float]) -> Interval:
    """Student's interval: the runs of different seeds are independent, and there are few of them.

    >>> [round(part, 3) for part in interval([1.0, 2.0, 3.0])]
    [2.0, 2.484]
    """
    if len(values) < 2:
        return Interval(float(np.mean(values)), float("inf"))
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Interval(float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1)) * error)
