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
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

Value: TypeAlias = float | tuple[float, ...]
"""A scalar for loops with one actuator and one sensor, a tuple for loops with several."""
Disturbances: TypeAlias = tuple[float | None, ...]
"""Measured influences in the loop's order, None where one is not known; a named tuple where they have names."""

_NO_PARTS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Sample:
    """What a loop observed at one instant.

    `applied` is the command in force since the previous sample, as the actuator reports it (None: not known).
    It differs from the last action's command whenever something limited, delayed or refused that command, and
    it is what anti-windup, predictors, recursive identification and bumpless transfer build on.
    An actuator that dithers reports the undithered value, for the dither averages out. `limits` are the lowest and
    the highest command that can be applied (None: not known): they tell a command that was cut from an actuator
    that was moved by others.
    """

    time: float
    dt: float
    setpoint: Value
    measurement: Value | None
    applied: Value | None = None
    disturbances: Disturbances = ()
    limits: tuple[Value, Value] | None = None


class ReasonCode(StrEnum):
    """Why a step ended as it did, for programs: they branch on this, never on the sentence beside it.

    A step has one code, the most specific: the code of the controller takes precedence over those of wrappers and
    of the loop that cut its command (`Action.saturated` says that as well). The values are written to telemetry:
    they may be added to, and are never changed.

    >>> ReasonCode("starved") is ReasonCode.STARVED, bool(ReasonCode.UNSPECIFIED)
    (True, False)
    """

    UNSPECIFIED = ""
    """Nothing out of the ordinary, or a controller that gives no code."""

    OPEN_LOOP = "open-loop"
    """The command does not depend on the measurement."""
    SIGNAL_COMPLETE = "signal-complete"
    """The signal of an experiment has been given to its end."""
    RAISED = "raised"
    LOWERED = "lowered"
    UNCHANGED = "unchanged"
    BACKED_OFF = "backed-off"
    """The broker blocks, refuses or is silent: the command was cut at once."""
    MEASURING = "measuring"
    """The command waits for a measurement that it has not had yet."""
    DRAINING = "draining"
    """The command is at its least, so that the shortest round trip can be measured."""
    APPLICATION_LIMITED = "application-limited"
    """The application sends less than the command allows."""
    WITHIN_TOLERANCE = "within-tolerance"
    """The error is too small to act on."""
    GAINS_CHANGED = "gains-changed"
    STARVED = "starved"
    """The queue had no more messages: the sample says nothing about the command."""
    AWAITING_RESPONSE = "awaiting-response"
    """The measurement has not followed the command yet, which goes no further meanwhile."""
    UNREACHABLE = "unreachable"
    """The set point is beyond what the plant can do."""
    LATENCY_LIMITED = "latency-limited"
    SATURATED_LOW = "saturated-low"
    SATURATED_HIGH = "saturated-high"
    SLEW_LIMITED = "slew-limited"

    HELD = "held"
    """The actuator is left alone, for a reason of its own."""
    HELD_NO_MEASUREMENT = "held-no-measurement"
    HELD_INVALID_SAMPLE = "held-invalid-sample"
    """Measurement, set point or time is not finite, or does not fit the controller."""
    HELD_NO_ESTIMATE = "held-no-estimate"
    """Something the controller needs besides the measurement has not been observed yet."""
    HELD_INVALID_COMMAND = "held-invalid-command"
    """The command would not be finite, or does not fit the actuator."""
    HELD_CONTROLLER_FAILED = "held-controller-failed"

    SENSOR_FAILED = "sensor-failed"
    REFERENCE_FAILED = "reference-failed"
    ACTUATOR_FAILED = "actuator-failed"
    OVERDUE = "overdue"
    """The sensor or the actuator has not answered an earlier step yet."""
    FROZEN = "frozen"
    """The guard or a person freezes the loop."""
    OUT_OF_ORDER = "out-of-order"
    """The sample is not newer than the one before."""
    RESTARTED = "restarted"
    """What the loop acts on failed and is started again."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a controller commands, and why: the record of one step.

    `command` None means: leave the actuator as it is. `parts` are the terms that add up to the command (for a PID
    "p", "i", "d"; "ff" for feed-forward). `saturated` is -1 or +1 where a limit cut the command, else 0.
    `reason` is for people, `code` says the same to programs.
    """

    command: Value | None
    parts: Mapping[str, float] = field(default_factory=lambda: _NO_PARTS)
    saturated: int = 0
    reason: str = ""
    code: ReasonCode = ReasonCode.UNSPECIFIED


S = TypeVar("S")


@runtime_checkable
class Controller(Protocol[S]):
    """A frozen dataclass that checks its own parameters and keeps these two promises.

    `initial(command)` is the state from which the first action continues smoothly at `command`, the value
    the actuator has right now (bumpless start). `step` never raises on a bad sample: a missing, infinite or NaN
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


def hold(reason: str, code: ReasonCode = ReasonCode.HELD) -> Action:
    """An action that leaves the actuator where it is."""
    return Action(command=None, reason=reason, code=code)


def seen(sample: Sample, measurement: Value | None, applied: Value | None) -> Sample:
    """The sample with another measurement and applied command (`replace` costs three times as much)."""
    return Sample(
        sample.time, sample.dt, sample.setpoint, measurement, applied, sample.disturbances, sample.limits
    )


def before_offset(sample: Sample, offset: tuple[float, ...]) -> Sample:
    """The sample for a controller to whose command `offset` is added on the way to the actuator.

    >>> inner = before_offset(Sample(0.0, 1.0, 5.0, 4.0, applied=10.0, limits=(0.0, 10.0)), (2.0,))
    >>> inner.applied, inner.limits
    (8.0, (-2.0, 8.0))
    """
    less = tuple(-d for d in offset)
    applied = sample.applied if sample.applied is None else shifted(sample.applied, less)
    limits = sample.limits
    if limits is not None and any(less):
        limits = shifted(limits[0], less), shifted(limits[1], less)
    return Sample(
        sample.time, sample.dt, sample.setpoint, sample.measurement, applied, sample.disturbances, limits
    )


def shifted(value: Value, offset: tuple[float, ...]) -> Value:
    """A value with an offset added to each component; a scalar is for all components.

    >>> shifted((1.0, 2.0), (0.5, 0.0)), shifted(1.0, (0.5,)), shifted(1.0, (0.5, 0.0))
    ((1.5, 2.0), 1.5, (1.5, 1.0))
    """
    if isinstance(value, tuple):
        return tuple(v + d for v, d in zip(value, offset, strict=True))
    return value + offset[0] if len(offset) == 1 else tuple(value + d for d in offset)
