"""AIMD: additive increase, multiplicative decrease."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    check_between,
    check_choice,
    hold_unusable,
    scalar_error,
)
from flyball.control.step import Action, ReasonCode, Sample, Value


@dataclass(frozen=True, slots=True)
class AimdState:
    command: float


@dataclass(frozen=True, slots=True)
class Aimd:
    """Adds a little while all is well, cuts by a factor when it is not; needs no model, shares fairly.

    Formula: congested: u(k) = decrease · u'(k−1); otherwise u(k) = u'(k−1) + increase, where u' is the applied
    command. Congested means that the measurement is above the set point (a delay, a backlog) or, with
    `congested="below"`, below it (free space, rate of confirms). It never rests: around the edge it saws
    between u and decrease·u. Meant for actuators from 0 up.

    >>> aimd, u = Aimd(increase=1.0, decrease=0.5), []
    >>> state = aimd.initial(6.0)
    >>> for delay_ms in (20.0, 20.0, 80.0, 20.0):
    ...     state, action = aimd.step(state, Sample(0.0, 1.0, setpoint=50.0, measurement=delay_ms))
    ...     u.append(action.command)
    >>> u
    [7.0, 8.0, 4.0, 5.0]

    Source: the rule by which TCP shares a link; the publisher paper tunes its batch size in the same spirit.
    """

    increase: float = field(default=1.0, metadata={"help": "added to the command at each sample that is well"})
    decrease: float = field(default=0.5, metadata={"help": "factor above 0 and below 1 when congested"})
    congested: Literal["above", "below"] = field(
        default="above", metadata={"help": "on which side of the set point the measurement means congestion"}
    )

    def __post_init__(self) -> None:
        check_between(self, "increase", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "decrease", 0.0, 1.0, low_open=True, high_open=True)
        check_choice(self, "congested", ("above", "below"))

    def initial(self, command: Value) -> AimdState:
        return AimdState(as_scalar(command))

    def step(self, state: AimdState, sample: Sample) -> tuple[AimdState, Action]:
        error = scalar_error(sample)
        if error is None:
            return state, hold_unusable(sample)
        base = applied_or(sample, state.command)
        congested = error < 0.0 if self.congested == "above" else error > 0.0
        command = base * self.decrease if congested else base + self.increase
        if not math.isfinite(command):
            return state, HOLD_NOT_FINITE
        parts = {"base": base, "change": command - base}
        if congested:
            return AimdState(command), Action(command, parts, reason="congested: cut", code=ReasonCode.LOWERED)
        return AimdState(command), Action(command, parts, reason="well: raised", code=ReasonCode.RAISED)
