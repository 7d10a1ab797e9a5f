"""What a signal brings that its own past does not predict: its innovations."""

from __future__ import annotations

import numpy as np

from flyball.control.identification.least_squares import solve
from flyball.control.models import Array

_OWN_PAST = 6  # rows that predict the next
_LEAST_ROWS = 40
_MAX_ROWS = 20_000
_PREDICTABLE = 1e-4  # share of the variance


def innovations(signal: Array) -> Array:
    """Each value less its prediction from the values before it; NaN where there are too few, or gaps.

    >>> np.isfinite(innovations(np.arange(3.0))).any().item()
    False
    """
    news = np.full(signal.size, np.nan)
    at = np.arange(_OWN_PAST, min(signal.size, _MAX_ROWS))
    past = [signal[at - i] for i in range(1, _OWN_PAST + 1)]
    finite = np.isfinite(signal[at]) & np.isfinite(np.array(past)).all(axis=0)
    if np.count_nonzero(finite) >= _LEAST_ROWS:
        news[at[finite]] = solve([column[finite] for column in past], signal[at][finite], offset=True).residuals
    return news


def is_predictable(signal: Array) -> bool:
    """Whether the signal is smooth or periodic: its own past says nearly all, so it looks alike at every delay.

    >>> is_predictable(np.sin(np.arange(100.0) / 4.0)), is_predictable(np.arange(100.0) % 3.0)
    (True, True)
    >>> is_predictable(np.random.default_rng(1).uniform(size=100))
    False
    """
    news = innovations(signal)
    finite = np.isfinite(news)
    if not finite.any():
        return False
    return float(news[finite].var()) < _PREDICTABLE * float(signal[finite].var())
