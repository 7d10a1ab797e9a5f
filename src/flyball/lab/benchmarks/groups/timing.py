"""Processor time of one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def milliseconds(act: Callable[[], object], repeat: int) -> float:
    """Return the median of `repeat` calls."""
    spent = []
    for _ in range(repeat):
        start = time.process_time_ns()
        act()
        spent.append((time.process_time_ns() - start) / 1e6)
    return median(spent)
