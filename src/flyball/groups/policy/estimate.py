"""A running mean that knows its own error.

The error is not derived from an assumed distribution of samples, which are averages themselves, overlap, and
come in bursts. It is read from the mean: how far does it wander in the time between two decisions? The squared
difference of two means is twice the variance of one, less what they have in common: e^(−span/memory).

A step of the measured quantity is no noise. One difference therefore counts as three standard errors at most:
noise that grows is followed within some samples, while a step hardly changes the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flyball.control.filters import ewma, ewma_over_time

SPAN = 4
"""Samples from one decision to the next."""
_KEEP_VARIANCE = 0.99
_OUTLIER = 3.0
_LEAST_ERROR = 0.01
"""of the mean: below this an error makes no difference, and a difference no outlier."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` that the mean is over; `variance`: of the mean; `past`: the mean at the latest samples."""

    mean: float
    seconds: float = 0.0
    variance: float = 0.0
    past: tuple[float, ...] = ()
    samples: int = 0

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return max(math.sqrt(self.variance), _LEAST_ERROR * abs(self.mean))


def follow(estimate: Estimate | None, value: float, dt_s: float, memory_s: float) -> Estimate:
    """Add what was measured over the last `dt_s`. Until there was as much as the memory holds, all counts alike.

    >>> half = follow(follow(None, 0.0, 1.0, 60.0), 1.0, 1.0, 60.0)
    >>> round(half.mean, 2), half.seconds
    (0.39, 2.0)
    """
    if estimate is None:
        return Estimate(value, dt_s)
    seconds = min(estimate.seconds + dt_s, memory_s)
    mean = ewma_over_time(estimate.mean, value, dt_s, max(seconds, 1e-9))
    # While the mean is over more and more, its variance falls as that of any mean.
    variance = estimate.variance * (estimate.seconds / seconds if seconds > 0.0 else 1.0)
    return Estimate(mean, seconds, variance, estimate.past, estimate.samples)


def take_sample(estimate: Estimate, sample_s: float, memory_s: float) -> Estimate:
    """Compare the mean with that of `SPAN` samples ago; to be called once every sample period.

    >>> rising = Estimate(1.0)
    >>> for value in range(SPAN + 1):
    ...     rising = take_sample(follow(rising, value, 100.0, 1.0), 5.0, 1.0)
    >>> rising.samples, round(rising.variance, 3)
    (5, 8.0)
    """
    mean, past, variance = estimate.mean, estimate.past, estimate.variance
    if len(past) == SPAN:
        differences = estimate.samples - SPAN  # that are in the variance already
        square = (mean - past[0]) ** 2 / 2.0 / -math.expm1(-SPAN * sample_s / memory_s)
        if differences >= SPAN:
            square = min(square, (_OUTLIER * estimate.error) ** 2)
        # a plain average at first, so that the first difference does not dominate
        keep = min(_KEEP_VARIANCE, differences / (differences + 1.0))
        variance = ewma(variance, square, keep)
    return Estimate(mean, estimate.seconds, variance, (*past, mean)[-SPAN:], estimate.samples + 1)
