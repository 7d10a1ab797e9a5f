"""Filters against noise: the exponentially weighted average and the running median.

Both are pure: the memory goes in and comes out. None as memory means "nothing seen yet", and the first value
then passes unchanged, so that a filter never starts from a made-up zero.
"""

from __future__ import annotations

import math


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
