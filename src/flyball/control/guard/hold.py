"""After the guard has stopped a controller: whether it may act again.

The actuator stands still, at the last safe command where there is one, so what the measurement does now is not
the loop's doing:

* A measurement that goes on moving up and down is moved by the load, which the controller attenuates: it acts
  again. Swings of that period, and moves of that size, are no sign against the loop any more.
* A swing that ends was the loop's own: the controller stays stopped until a person decides.
* A gain that was lost or inverted is back when the measurement stays at the goal under the safe command, as it did
  before. The goal may have moved meanwhile, so the controller is also tried again after a pause that doubles with
  each trial in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Cause: TypeAlias = Literal["lost", "inverted", "oscillation"]

AT_GOAL = 5
"""Samples at the goal after which a gain is back."""
_SAME_PERIOD = 0.35  # of the period of the swing before
_STILL_SWINGS = 0.5  # part of the height of the swing before
_TURNS = {"oscillation": 3, "lost": 2, "inverted": 2}  # a measurement that only settles turns once
_MOST_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class Hold:
    """Why the controller was stopped, and how the measurement has moved in the `samples` since.

    `size`: smaller moves do not count. `extreme`: the highest or lowest value since the last turn, `direction` the
    way that it goes. `period`: of the swing for which it was stopped.
    """

    cause: Cause
    size: float
    period: float = 0.0
    samples: int = 0
    extreme: float | None = None
    direction: int = 0
    turns: int = 0
    first_turn: int = 0
    last_turn: int = 0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class Release:
    """Why the controller may act again. `trial`: nothing shows yet that it can.

    `load_period`, `load_range`: how the load moves the measurement.
    """

    reason: str
    trial: bool = False
    load_period: float | None = None
    load_range: float = 0.0


def swing_size(height: float) -> float:
    """Moves that count after a swing of this height."""
    return _STILL_SWINGS * height


def watch(hold: Hold, value: float, at_goal: int, trials: int, patience: int) -> tuple[Hold, Release | None]:
    """Look at one more measurement; `at_goal` samples in a row were at the goal, `trials` have been in vain.

    >>> hold, k = Hold("oscillation", size=5.0, period=8.0), 0
    >>> while (step := watch(hold, 10.0 * (k % 8 < 4), 0, 0, 20))[1] is None:
    ...     hold, k = step[0], k + 1
    >>> step[1].reason
    'the measurement goes on swinging with a period of 8 samples without the controller: the load moves it'
    """
    hold = _follow(hold, value)
    if hold.turns >= _TURNS[hold.cause]:
        period = 2.0 * (hold.last_turn - hold.first_turn) / (hold.turns - 1)
        swings = f"the measurement goes on swinging with a period of {period:.3g} samples"
        if hold.cause != "oscillation" or is_same(period, hold.period):
            release = Release(
                f"{swings} without the controller: the load moves it", False, period, hold.high - hold.low
            )
            return hold, release
    if hold.cause == "oscillation":
        return hold, None
    if at_goal >= AT_GOAL:
        return hold, Release(f"the goal has been met for {at_goal} samples")
    if hold.samples >= patience * 2 ** (1 + min(trials, _MOST_DOUBLINGS)):
        return hold, Release(f"tried again after {hold.samples} samples", trial=True)
    return hold, None


def is_same(period: float, other: float | None) -> bool:
    """Whether two swings have the same period."""
    return other is not None and abs(period - other) <= max(1.0, _SAME_PERIOD * other)


def _follow(hold: Hold, value: float) -> Hold:
    samples = hold.samples + 1
    if hold.extreme is None:
        return replace(hold, samples=samples, extreme=value, low=value, high=value)
    hold = replace(hold, samples=samples, low=min(hold.low, value), high=max(hold.high, value))
    assert hold.extreme is not None
    away = value - hold.extreme
    direction = 1 if away > 0.0 else -1
    if hold.direction == direction:
        return replace(hold, extreme=value)
    if abs(away) <= hold.size:
        return hold
    if hold.direction == 0:
        return replace(hold, extreme=value, direction=direction)
    first = hold.first_turn if hold.turns else samples
    return replace(
        hold, extreme=value, direction=direction, turns=hold.turns + 1, first_turn=first, last_turn=samples
    )
