"""State feedback with a predictor, for plants whose actuator answers late."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    back_calculate,
    check_finite,
    check_finite_tuple,
    hold_unusable,
    scalar_error,
    tracking_time,
)
from flyball.control.step import Action, Sample, Value
from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class StateFeedbackState:
    """`command` was asked for last, `earlier` were applied before it, newest first; `outputs` likewise."""

    command: float
    earlier: tuple[float, ...]
    outputs: tuple[float, ...] = ()
    integral: float | None = None


@dataclass(frozen=True, slots=True)
class StateFeedback:
    """Knows the commands that are still under way: as fast as the delay allows, where PI must be slow.

    Formula: u(k) = I(k) − Σᵢ kyᵢ·y(k−i) − Σⱼ kuⱼ·u(k−j),  I(k) = I(k−1) + Ki·e(k),  i from 0, j from 1.

    A plant with an input delay of D samples has the state (y, u(k−1) … u(k−D)): feeding all of it back is the
    same as feeding back a prediction of y(k+D), and every closed-loop pole can be placed. The commands are
    those that were *applied*; the integral leaves no steady error and is back-calculated like that of PI. A
    missing sample holds the command, and the history goes on.

    Flow control of the event-processing paper with its one-interval delay, poles at 0.449, 0.449 and 0 (the best
    PI has radius 0.675):

    >>> loop = StateFeedback(ki=-0.0022657, ky=(-0.0079903,), ku=(1.087,))
    >>> state, y, under_way = loop.initial(0.0), 0.0, 0.0
    >>> for k in range(10):
    ...     state, action = loop.step(state, Sample(k, 2.0, setpoint=100.0, measurement=y))
    ...     y, under_way = 0.985 * y - 134.0 * under_way, action.command
    >>> round(y)
    100

    Source: the event-processing paper, which left the delay out of its first model; pole placement by
    `flyball design --controller state`.
    """

    ki: float = field(metadata={"help": "integral gain Ki: command per unit of error and sample"})
    ky: tuple[float, ...] = field(metadata={"help": "gains on the measurements y(k), y(k−1), …"})
    ku: tuple[float, ...] = field(default=(), metadata={"help": "gains on the applied commands u(k−1), u(k−2), …"})

    def __post_init__(self) -> None:
        check_finite(self, "ki")
        check_finite_tuple(self, "ky")
        check_finite_tuple(self, "ku")
        if not self.ky:
            raise InvalidValue("StateFeedback.ky must have a gain for at least the last measurement, got ()")

    def initial(self, command: Value) -> StateFeedbackState:
        start = as_scalar(command)
        return StateFeedbackState(start, (start,) * len(self.ku))

    def step(self, state: StateFeedbackState, sample: Sample) -> tuple[StateFeedbackState, Action]:
        in_force = applied_or(sample, state.command)
        under_way = (in_force, *state.earlier)[: len(self.ku)]
        integral = state.integral
        if integral is not None:
            integral = back_calculate(integral, state.command, sample, tracking_time(sum(self.ky), self.ki))
        error = scalar_error(sample)
        if error is None or sample.measurement is None:
            held_state = StateFeedbackState(in_force, under_way, state.outputs, integral)
            return held_state, hold_unusable(sample)
        measured = as_scalar(sample.measurement)
        # at the start the past is taken to equal the present: a plant at rest
        past = state.outputs or (measured,) * len(self.ky)
        outputs = (measured, *past)[: len(self.ky)]
        on_outputs = -sum(g * y for g, y in zip(self.ky, outputs, strict=True))
        on_commands = -sum(g * u for g, u in zip(self.ku, under_way, strict=True))
        before = in_force - on_outputs - on_commands if integral is None else integral
        after = before + self.ki * error
        command = after + on_outputs + on_commands
        if not math.isfinite(command):
            return StateFeedbackState(in_force, under_way, state.outputs, integral), HOLD_NOT_FINITE
        parts = {"i": after, "y": on_outputs, "u": on_commands}
        return StateFeedbackState(command, under_way, outputs, after), Action(command, parts)
