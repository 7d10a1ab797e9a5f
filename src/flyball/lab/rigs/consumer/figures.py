"""Figures of a consumer's run: deviation, settling, overshoot, shares, recovery."""

from __future__ import annotations

import numpy as np

from flyball.control.models import Array

BAND = 0.1
"""A rate is settled when it stays within ±10 % of the goal."""
_STAYING = 5  # samples in a row; a stall of the machine long after does not count


def within(rate: Array, goal: Array, band: float = BAND) -> float:
    """The share of samples within the band.

    >>> within(np.array([95.0, 80.0]), np.array([100.0, 100.0]))
    0.5
    """
    return float(np.mean(np.abs(rate - goal) <= band * goal))


def settled(rate: Array, goal: Array, start: int = 0) -> float:
    """After how many samples from `start` the rate is within the band for five samples; never: all there are.

    >>> rate = np.array([10.0, 95.0, 120.0, 99.0, 101.0, 98.0, 103.0, 100.0])
    >>> settled(rate, np.full(8, 100.0))
    3.0
    """
    inside = np.abs(rate - goal)[start:] <= BAND * goal[start:]
    for k in range(inside.size):
        stay = inside[k : k + _STAYING]
        if stay.all() and stay.size >= min(_STAYING, inside.size):
            return float(k)
    return float(inside.size)


def longest_outside(rate: Array, goal: Array, start: int = 0) -> float:
    """The longest run of samples outside the band: recovery from a disturbance that goes on, such as a drift.

    >>> longest_outside(np.array([50.0, 100.0, 60.0, 60.0, 100.0]), np.full(5, 100.0))
    2.0
    """
    longest = now = 0
    for off in np.abs(rate - goal)[start:] > BAND * goal[start:]:
        now = now + 1 if off else 0
        longest = max(longest, now)
    return float(longest)


def overshoot(rate: Array, goal: Array) -> float:
    """How far the rate went beyond its goal, as a part of the goal."""
    return max(0.0, float(np.max(rate / goal)) - 1.0)


def nrmse(rate: Array, goal: Array) -> float:
    """Root of the mean squared error as a part of the mean goal."""
    return float(np.sqrt(np.mean((rate - goal) ** 2)) / np.mean(goal))


def moves(command: Array) -> float:
    """Σ|Δu|: the sum of all changes of the window."""
    return float(np.abs(np.diff(command)).sum())
