"""P: proportional control."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    as_scalar,
    check_finite,
    hold_unusable,
    scalar_error,
)
from flyball.control.step import Action, Sample, Value


@dataclass(frozen=True, slots=True)
class PState:
    bias: float


@dataclass(frozen=True, slots=True)
class P:
    """Command in proportion to the error; simple, and leaves an offset.

    Formula: u(k) = bias + Kp·e(k), e = set point − measurement.

    At rest y = G·(bias + Kp·(r − y)) with G the plant's steady-state gain, so y = G·(bias + Kp·r) / (1 +
    G·Kp): only a bias that already is the right command, or an infinite gain, would reach r. The prefetch paper's
    plant with Kp = 0.02 and no bias stays at 62 % of its goal:

    >>> p, y = P(kp=0.02, bias=0.0), 0.0
    >>> state = p.initial(0.0)
    >>> for k in range(200):
    ...     state, action = p.step(state, Sample(k, 1.0, setpoint=400.0, measurement=y))
    ...     y = 0.26 * y + 59.73 * action.command
    >>> round(y / 400.0, 2)
    0.62

    Source: the prefetch paper, with the bias added so that a loop can start at its working point.
    """

    kp: float = field(metadata={"help": "proportional gain Kp: command per unit of error"})
    bias: float | None = field(
        default=None, metadata={"help": "command at zero error; left out: the command in force at the start"}
    )

    def __post_init__(self) -> None:
        check_finite(self, "kp")
        if self.bias is not None:
            check_finite(self, "bias")

    def initial(self, command: Value) -> PState:
        return PState(as_scalar(command) if self.bias is None else float(self.bias))

    def step(self, state: PState, sample: Sample) -> tuple[PState, Action]:
        error = scalar_error(sample)
        if error is None:
            return state, hold_unusable(sample)
        p = self.kp * error
        command = state.bias + p
        if not math.isfinite(command):
            return state, HOLD_NOT_FINITE
        return state, Action(command, {"bias": state.bias, "p": p})
