"""Measure two programs alternately, on a machine that others use too."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def measure_alternately(turns: int, ours: Callable[[], float], peer: Callable[[], float]) -> tuple[float, float]:
    """Measure the typical pair of rates (ours, peer's), after a first round that only warms up.

    The second of a pair finds a warmer server, so the order alternates.
    """
    ours(), peer()
    pairs = []
    for turn in range(turns):
        if turn % 2:
            theirs = peer()
            pairs.append((ours(), theirs))
        else:
            pairs.append((ours(), peer()))
    return typical_pair(pairs)


def typical_pair(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the pair with the median ratio: both of a pair ran under nearly the same load, two medians may not.

    >>> typical_pair([(10.0, 10.0), (90.0, 100.0), (30.0, 60.0)])  # ratios 1, 0.9 and 0.5
    (90.0, 100.0)
    """
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
