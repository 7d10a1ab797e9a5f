"""PI: proportional and integral control, the everyday controller."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    back_calculate,
    check_finite,
    hold_unusable,
    scalar_error,
    tracking_time,
)
from flyball.control.step import Action, Sample, Value


@dataclass(frozen=True, slots=True)
class PiState:
    """`integral` is None until the first error was seen; `command` is what was asked for last."""

    command: float
    integral: float | None = None


@dataclass(frozen=True, slots=True)
class Pi:
    """Removes the offset that P leaves; the right choice for most loops.

    Formula: u(k) = Kp·e(k) + I(k),  I(k) = I(k−1) + Ki·e(k).  On y(k+1) = a·y(k) + b·u(k) the closed loop has the
    characteristic polynomial z² + [b(Kp+Ki) − (1+a)]z + a − b·Kp.

    Anti-windup: if u' was applied instead of u, then I(k−1) := I(k−1) + (u' − u)/T. T is 1 where others moved the
    actuator, so that the formula would have given u', and the integral time max(1, Kp/Ki) where a limit cut the
    command, so that noise does not pull it off the limit. Start: I(−1) = command − Kp·e(0), so that the first move
    is Ki·e(0) alone.

    >>> pi, y = Pi(kp=-0.0016, ki=0.0060), 0.0
    >>> state = pi.initial(1.0)
    >>> for k in range(60):
    ...     state, action = pi.step(state, Sample(k, 1.0, setpoint=400.0, measurement=y))
    ...     y = 0.26 * y + 59.73 * action.command
    >>> round(y, 3)
    400.0

    Source: the prefetch paper (the gains above) and the event-processing paper.
    """

    kp: float = field(metadata={"help": "proportional gain Kp: command per unit of error"})
    ki: float = field(metadata={"help": "integral gain Ki: command per unit of error and sample"})

    def __post_init__(self) -> None:
        check_finite(self, "kp", "ki")

    def initial(self, command: Value) -> PiState:
        return PiState(as_scalar(command))

    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        error = scalar_error(sample)
        if error is None:
            return state, hold_unusable(sample)
        p = self.kp * error
        if state.integral is None:
            before = applied_or(sample, state.command) - p
        else:
            before = back_calculate(state.integral, state.command, sample, tracking_time(self.kp, self.ki))
        integral = before + self.ki * error
        command = p + integral
        if not math.isfinite(command):
            return state, HOLD_NOT_FINITE
        return PiState(command, integral), Action(command, {"p": p, "i": integral})
