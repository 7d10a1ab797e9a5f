"""PID: proportional, integral and (filtered) derivative control."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    back_calculate,
    check_between,
    check_choice,
    check_finite,
    hold_unusable,
    scalar_error,
    tracking_time,
)
from flyball.control.filters import ewma
from flyball.control.step import Action, Sample, Value


@dataclass(frozen=True, slots=True)
class PidState:
    """`previous` is the signal the derivative was last taken of; None at the start and after a gap."""

    command: float
    integral: float | None = None
    previous: float | None = None
    derivative: float = 0.0


@dataclass(frozen=True, slots=True)
class Pid:
    """PI with a derivative term that brakes early; sensitive to noise, so filter it.

    Formula: u(k) = Kp·e(k) + I(k) + D(k),  I(k) = I(k−1) + Ki·e(k),
    D(k) = f·D(k−1) + (1−f)·Kd·(x(k) − x(k−1)).

    x is the error, or minus the measurement: the poles are the same, but then a new set point does not kick
    the actuator. f = 0 is the unfiltered derivative of the designs; there the characteristic polynomial on y(k+1)
    = a·y(k) + b·u(k) is z³ + [b(Kp+Ki+Kd) − (1+a)]z² + [a − b(Kp+2Kd)]z + b·Kd. f > 0 adds a pole at f. After
    a missing sample the derivative starts afresh: a difference across a gap is not a slope per sample.
    Anti-windup and start are those of PI.

    >>> pid, y = Pid(kp=0.0017761, ki=0.0058096, kd=0.0018417), 0.0
    >>> state = pid.initial(1.0)
    >>> for k in range(60):
    ...     state, action = pid.step(state, Sample(k, 1.0, setpoint=400.0, measurement=y))
    ...     y = 0.26 * y + 59.73 * action.command
    >>> round(y, 3)
    400.0

    Source: the prefetch paper (the gains above), without the second Kd·e(k) that its printed formula adds.
    """

    kp: float = field(metadata={"help": "proportional gain Kp: command per unit of error"})
    ki: float = field(metadata={"help": "integral gain Ki: command per unit of error and sample"})
    kd: float = field(metadata={"help": "derivative gain Kd: command per unit of error gained in a sample"})
    derivative_filter: float = field(
        default=0.0, metadata={"help": "part f of the old derivative that stays, from 0 (unfiltered) to below 1"}
    )
    derivative_on: Literal["error", "measurement"] = field(
        default="error", metadata={"help": "signal the derivative is taken of; measurement: no kick by a new goal"}
    )

    def __post_init__(self) -> None:
        check_finite(self, "kp", "ki", "kd")
        check_between(self, "derivative_filter", 0.0, 1.0, high_open=True)
        check_choice(self, "derivative_on", ("error", "measurement"))

    def initial(self, command: Value) -> PidState:
        return PidState(as_scalar(command))

    def step(self, state: PidState, sample: Sample) -> tuple[PidState, Action]:
        error = scalar_error(sample)
        if error is None:
            return PidState(state.command, state.integral), hold_unusable(sample)
        signal = error if self.derivative_on == "error" else error - as_scalar(sample.setpoint)
        slope = 0.0 if state.previous is None else self.kd * (signal - state.previous)
        p, d = self.kp * error, ewma(state.derivative, slope, self.derivative_filter)
        if state.integral is None:
            before = applied_or(sample, state.command) - p - d
        else:
            before = back_calculate(state.integral, state.command, sample, tracking_time(self.kp, self.ki))
        integral = before + self.ki * error
        command = p + integral + d
        if not math.isfinite(command):
            return PidState(state.command, state.integral), HOLD_NOT_FINITE
        return PidState(command, integral, signal, d), Action(command, {"p": p, "i": integral, "d": d})
