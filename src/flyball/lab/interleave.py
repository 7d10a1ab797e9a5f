"""Two programs measured in turns on a machine that others use too."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def turn_by_turn(turns: int, ours: Callable[[], float], peer: Callable[[], float]) -> tuple[float, float]:
    """The typical pair of rates (ours, peer's), after a first turn that only warms up.

    Whoever comes second finds a warmer server, so the order alternates.
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
    """The pair with the median ratio: both of a pair saw nearly the same machine, two medians may not have.

    >>> typical_pair([(10.0, 10.0), (90.0, 100.0), (30.0, 60.0)])  # ratios 1, 0.9 and 0.5
    (90.0, 100.0)
    """
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
