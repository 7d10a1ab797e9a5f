"""Proportional rule: scale the command by goal over measurement, as horizontal autoscalers do ("HPA")."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    check_between,
    hold_unusable,
    scalar_error,
)
from flyball.control.limits import clamp
from flyball.control.step import Action, ReasonCode, Sample, Value, hold


@dataclass(frozen=True, slots=True)
class ProportionalRuleState:
    command: float


@dataclass(frozen=True, slots=True)
class ProportionalRule:
    """Next command = command · set point / measurement ("HPA"); no gains to tune, right for proportional plants.

    Formula: u(k) = u'(k−1) · r/y, where u' is the applied command; no move while |r/y − 1| ≤ tolerance. Where y
    is proportional to u this lands on the goal in one step; with an offset or a lag it over- or undershoots,
    and measurement noise goes straight into the actuator. One step changes the command by at most the factor
    `greatest_factor` either way, which also covers y = 0. A command at or below `least` is raised to it
    first, for no factor leads away from 0. A goal or measurement below 0 has no meaning here: held.

    >>> rule = ProportionalRule(tolerance=0.1)
    >>> for measured in (200.0, 390.0, 0.0):
    ...     _, action = rule.step(rule.initial(5.0), Sample(0.0, 1.0, setpoint=400.0, measurement=measured))
    ...     print(action.command, action.reason)
    10.0 goal over measurement is 2
    5.0 within the tolerance of 0.1
    20.0 goal over measurement is inf, limited to 4

    Source: the horizontal pod autoscaler's rule, measured for prefetch by the prefetch paper's authors.
    """

    tolerance: float = field(
        default=0.1, metadata={"help": "relative error that is left alone, from 0 to below 1"}
    )
    greatest_factor: float = field(default=4.0, metadata={"help": "greatest change of the command in one sample"})
    least: float = field(default=1.0, metadata={"help": "command from which the rule starts when it is lower"})

    def __post_init__(self) -> None:
        check_between(self, "tolerance", 0.0, 1.0, high_open=True)
        check_between(self, "greatest_factor", 1.0, math.inf, low_open=True, high_open=True)
        check_between(self, "least", 0.0, math.inf, low_open=True, high_open=True)

    def initial(self, command: Value) -> ProportionalRuleState:
        return ProportionalRuleState(as_scalar(command))

    def step(self, state: ProportionalRuleState, sample: Sample) -> tuple[ProportionalRuleState, Action]:
        if scalar_error(sample) is None or sample.measurement is None:
            return state, hold_unusable(sample)
        goal, measured = as_scalar(sample.setpoint), as_scalar(sample.measurement)
        if goal < 0.0 or measured < 0.0 or goal == measured == 0.0:
            return state, hold(
                f"goal {goal:g} / measurement {measured:g} is undefined or negative: held",
                ReasonCode.HELD_INVALID_SAMPLE,
            )
        base = applied_or(sample, state.command)
        ratio = goal / measured if measured > 0.0 else math.inf
        if abs(ratio - 1.0) <= self.tolerance:
            return ProportionalRuleState(base), Action(
                base, reason=f"within the tolerance of {self.tolerance:g}", code=ReasonCode.WITHIN_TOLERANCE
            )
        factor = clamp(ratio, 1.0 / self.greatest_factor, self.greatest_factor)
        command = max(base, self.least) * factor
        if not math.isfinite(command):
            return state, HOLD_NOT_FINITE
        reason = f"goal over measurement is {ratio:g}" + ("" if factor == ratio else f", limited to {factor:g}")
        return ProportionalRuleState(command), Action(command, {"base": base, "factor": factor}, reason=reason)
