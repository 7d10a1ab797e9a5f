"""Signals for experiments on a plant: step, staircase and pseudo-random binary sequence (PRBS).

All of them keep to `Limits`, so that an experiment never asks more of a live plant than its owner allowed: the
range of the actuator, the largest change at once, and how long a value is held before the next change. Nothing
here is random by itself: a PRBS is determined by its seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flyball.control.models import Array
from flyball.errors import InvalidValue

# Feedback taps of maximal linear shift registers: n bits run through all 2ⁿ − 1 states but zero.
_TAPS = {
    3: (3, 2),
    4: (4, 3),
    5: (5, 3),
    6: (6, 5),
    7: (7, 6),
    8: (8, 6, 5, 4),
    9: (9, 5),
    10: (10, 7),
    11: (11, 9),
    12: (12, 6, 4, 1),
    15: (15, 14),
    17: (17, 14),
    20: (20, 17),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What an experiment may ask of an actuator.

    Values lie in [low, high], change by at most `max_change` at once, and are held for at least `hold` samples.
    """

    low: float
    high: float
    max_change: float = math.inf
    hold: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidValue(
                f"low and high of limits must be finite with low < high, got {self.low} and {self.high}"
            )
        if not self.max_change > 0.0:
            raise InvalidValue(f"max_change must be > 0, got {self.max_change}")
        if self.hold < 1:
            raise InvalidValue(f"hold must be a number of samples >= 1, got {self.hold}")

    def check(self, value: float, name: str) -> float:
        if not self.low <= value <= self.high:  # also refuses NaN
            raise InvalidValue(f"{name} must be within {self.low:g} and {self.high:g}, got {value:g}")
        return float(value)

    def reach(self, start: float, goal: float) -> list[float]:
        """The values on the way from `start` (left out) to `goal` (included) in changes that are allowed."""
        changes = max(1, math.ceil(abs(goal - start) / self.max_change - 1e-9))
        return [start + (goal - start) * i / changes for i in range(1, changes)] + [goal]


def step(samples: int, before: float, after: float, at: int, limits: Limits) -> Array:
    """`before` for `at` samples, then `after`; a change larger than allowed is made in equal parts.

    >>> step(6, 1.0, 5.0, at=2, limits=Limits(0.0, 10.0, max_change=2.0)).tolist()
    [1.0, 1.0, 3.0, 5.0, 5.0, 5.0]
    """
    if not 0 <= at <= samples:
        raise InvalidValue(f"the step must be within the {samples} samples of the signal, got sample {at}")
    start, goal = (
        limits.check(before, "the value before the step"),
        limits.check(after, "the value after the step"),
    )
    changes = np.repeat(limits.reach(start, goal), limits.hold)
    rise = changes[: samples - at]
    return np.concatenate([np.full(at, start), rise, np.full(samples - at - rise.size, goal)])


def staircase(levels: Iterable[float], limits: Limits) -> Array:
    """Each level in turn for `limits.hold` samples; changes larger than allowed get levels between.

    >>> staircase([1.0, 2.0, 4.0], Limits(1.0, 4.0, max_change=1.0, hold=2)).tolist()
    [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
    """
    wanted = [limits.check(level, f"level {i + 1}") for i, level in enumerate(levels)]
    if not wanted:
        raise InvalidValue("levels of a staircase must be at least one, got none")
    values = [wanted[0]]
    for start, goal in itertools.pairwise(wanted):
        values += limits.reach(start, goal)
    return np.repeat(values, limits.hold)


def prbs(samples: int, centre: float, amplitude: float, limits: Limits, seed: int) -> Array:
    """centre ± amplitude, switching pseudo-randomly at multiples of `limits.hold`: excites all frequencies evenly.

    The shift register is long enough not to repeat within a million changes; `seed` is its starting state.

    >>> signal = prbs(8, 10.0, 2.0, Limits(5.0, 15.0), seed=1)
    >>> sorted(set(signal.tolist()))
    [8.0, 12.0]
    """
    if samples < 1:
        raise InvalidValue(f"samples of a signal must be >= 1, got {samples}")
    if not amplitude > 0.0:
        raise InvalidValue(f"amplitude of a PRBS must be > 0, got {amplitude}")
    low = limits.check(centre - amplitude, "centre - amplitude")
    high = limits.check(centre + amplitude, "centre + amplitude")
    if 2.0 * amplitude > limits.max_change:
        raise InvalidValue(
            f"a PRBS jumps by twice its amplitude, {2.0 * amplitude:g}, more than the allowed change "
            f"{limits.max_change:g}; use an amplitude of at most {limits.max_change / 2.0:g}"
        )
    bits = _register(math.ceil(samples / limits.hold), seed)
    return np.repeat(np.where(bits, high, low), limits.hold)[:samples]


def _register(count: int, seed: int) -> np.typing.NDArray[np.bool_]:
    size = next((bits for bits in _TAPS if 2**bits - 1 >= count), max(_TAPS))
    state = seed % (2**size - 1) + 1  # never zero: a register of zeros stays there
    out = np.empty(count, dtype=bool)
    for i in range(count):
        out[i] = state & 1
        feedback = 0
        for tap in _TAPS[size]:
            feedback ^= state >> (size - tap)
        state = (state >> 1) | ((feedback & 1) << (size - 1))
    return out
