"""The contract between a loop and its controller.

A controller is a frozen configuration; whatever it remembers is a *state value* that goes in and comes out::

    state = controller.initial(command)
    state, action = controller.step(state, sample)

so a state can be stored, restored, compared and replayed, and the same controller runs in a live loop, in the
twin and in a test. `step` is pure: time, measurement and the command that really was applied all arrive in the
sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

Value: TypeAlias = float | tuple[float, ...]
"""A scalar for loops with one knob and one sensor, a tuple for loops with several."""

_NO_PARTS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Sample:
    """What a loop observed at one instant.

    `applied` is the command in force since the previous sample, as the actuator reports it (None: not known).
    It differs from the last action's command whenever something limited, delayed or refused that command, and
    it is what anti-windup, predictors, recursive identification and bumpless transfer build on.
    An actuator that dithers reports the undithered value, for the dither averages out.
    """

    time: float
    dt: float
    setpoint: Value
    measurement: Value | None
    applied: Value | None = None
    disturbances: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What a controller wants, and why: the receipt of one step.

    `command` None means: leave the knob as it is. `parts` are the terms that add up to the command (for a PID
    "p", "i", "d"; "ff" for feed-forward). `saturated` is -1 or +1 where a limit cut the command, else 0.
    """

    command: Value | None
    parts: Mapping[str, float] = field(default_factory=lambda: _NO_PARTS)
    saturated: int = 0
    reason: str = ""


S = TypeVar("S")


@runtime_checkable
class Controller(Protocol[S]):
    """A frozen dataclass that checks its own parameters and keeps these two promises.

    `initial(command)` is the state from which the first action continues smoothly at `command`, the value
    the knob has right now (bumpless start). `step` never raises on a bad sample: a missing, infinite or NaN
    measurement gives an Action whose command is None and whose reason says so, and leaves the state usable.
    """

    def initial(self, command: Value) -> S: ...

    def step(self, state: S, sample: Sample) -> tuple[S, Action]: ...


def is_usable(value: Value | None) -> bool:
    """Whether a measurement can be computed with: present, and finite in every component.

    >>> is_usable(None), is_usable(float("nan")), is_usable((1.0, 2.0))
    (False, False, True)
    """
    if value is None:
        return False
    if isinstance(value, tuple):
        return all(math.isfinite(v) for v in value)
    return math.isfinite(value)


def hold(reason: str) -> Action:
    """An action that leaves the knob where it is."""
    return Action(command=None, reason=reason)
