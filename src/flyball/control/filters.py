"""Filters against noise: the exponentially weighted average, the running median, the least and greatest of late.

All are pure: the memory goes in and comes out. None (or no values) as memory means "nothing seen yet", and the
first value then passes unchanged, so that a filter never starts from a made-up zero.
"""

from __future__ import annotations

import math
from typing import TypeAlias

Timed: TypeAlias = tuple[tuple[float, float], ...]
"""What `windowed_min` and `windowed_max` remember: (time, value), oldest first, the first is the answer."""

_SLOTS = 8


def ewma(average: float | None, value: float, keep: float) -> float:
    """The new average: keep·average + (1 − keep)·value.

    `keep` from 0 (no memory) to below 1 is the part of the old average that stays; the average then answers a
    step with a time constant of −1/ln(keep) samples, and passes (1−keep)/(1+keep) of the variance of white
    noise.

    >>> ewma(None, 8.0, keep=0.5), ewma(8.0, 4.0, keep=0.5)
    (8.0, 6.0)
    """
    return value if average is None else value + keep * (average - value)


def ewma_over_time(average: float | None, value: float, dt_s: float, time_constant_s: float) -> float:
    """`ewma` for samples at irregular times: the old average fades by e^(−dt/τ), whatever the sampling.

    Two samples of the same value fade it just as one sample after the same time would:

    >>> once = ewma_over_time(0.0, 1.0, 2.0, time_constant_s=5.0)
    >>> twice = ewma_over_time(ewma_over_time(0.0, 1.0, 1.0, 5.0), 1.0, 1.0, 5.0)
    >>> abs(once - twice) < 1e-15
    True
    """
    return ewma(average, value, math.exp(-max(0.0, dt_s) / time_constant_s))


def median(window: tuple[float, ...], value: float, size: int) -> tuple[tuple[float, ...], float]:
    """The last `size` values with `value` added, and their median.

    A median of n ignores up to (n−1)/2 outliers altogether, where an average smears each of them; the price
    is a delay of (n−1)/2 samples. An even count gives the mean of the middle two.

    >>> median((10.0, 11.0), 500.0, size=3)
    ((10.0, 11.0, 500.0), 11.0)
    """
    window = (*window, value)[-size:]
    ordered = sorted(window)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return window, ordered[middle]
    # halved first: two large values must not overflow in the sum
    return window, 0.5 * ordered[middle - 1] + 0.5 * ordered[middle]


def windowed_min(entries: Timed, time_s: float, value: float, span_s: float) -> Timed:
    """The least value of the last `span_s` seconds, with what may become the least once it is too old.

    The answer stands first: ``windowed_min(...)[0]`` is (when, value). A value that is not below a later one
    can never be the answer again and is forgotten. Of values within an eighth of the span only the least is
    kept, so that at most nine are remembered whatever the sampling; the window is then exact to an eighth.

    >>> entries = ()
    >>> for time_s, value in ((0.0, 5.0), (1.0, 3.0), (4.0, 4.0), (12.0, 6.0)):
    ...     entries = windowed_min(entries, time_s, value, span_s=10.0)
    ...     print(entries[0][1], end=" ")
    5.0 3.0 3.0 4.0
    """
    alive = [entry for entry in entries if abs(time_s - entry[0]) <= span_s]
    while alive and alive[-1][1] >= value:
        alive.pop()
    if not alive or time_s - alive[-1][0] > span_s / _SLOTS:
        alive.append((time_s, value))
    return tuple(alive)


def windowed_max(entries: Timed, time_s: float, value: float, span_s: float) -> Timed:
    """`windowed_min` for the greatest value.

    >>> entries = windowed_max((), 0.0, 5.0, span_s=10.0)
    >>> windowed_max(entries, 1.0, 3.0, span_s=10.0)[0], windowed_max(entries, 11.0, 3.0, span_s=10.0)[0]
    ((0.0, 5.0), (11.0, 3.0))
    """
    negated = windowed_min(tuple((t, -v) for t, v in entries), time_s, -value, span_s)
    return tuple((t, -v) for t, v in negated)
