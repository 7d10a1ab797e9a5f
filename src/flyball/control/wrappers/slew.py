"""Slew: limit how far a command moves in one sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from flyball.control.controllers.common import check_between
from flyball.control.limits import slew_value
from flyball.control.step import Action, Controller, ReasonCode, Sample, Value, is_usable
from flyball.control.wrappers.common import check_inner, hold_invalid, limited, same_shape, with_applied


@dataclass(frozen=True, slots=True)
class SlewState:
    """`command` is what was let through last."""

    inner: Any
    command: Value


@dataclass(frozen=True, slots=True)
class Slew:
    """Lets the command move only so far in one sample.

    Formula: u'(k) = min(max(u(k), u'(k−1) − fall), u'(k−1) + rise), where u'(k−1) is the command that was
    applied. Like saturation it does not wind up: the inner controller learns what was let through.

    >>> from flyball.control.controllers.fixed import Fixed
    >>> slow = Slew(Fixed(10.0), rise=4.0)
    >>> state = slow.initial(0.0)
    >>> for k in range(4):
    ...     state, action = slow.step(state, Sample(k, 1.0, setpoint=1.0, measurement=1.0))
    ...     print(action.command)
    4.0
    8.0
    10.0
    10.0
    """

    inner: Controller[Any] = field(metadata={"help": "the controller whose command is slowed"})
    rise: float = field(default=math.inf, metadata={"help": "greatest step up in one sample"})
    fall: float = field(default=math.inf, metadata={"help": "greatest step down in one sample"})

    def __post_init__(self) -> None:
        check_inner(self)
        check_between(self, "rise", 0.0, math.inf, low_open=True)
        check_between(self, "fall", 0.0, math.inf, low_open=True)

    def initial(self, command: Value) -> SlewState:
        return SlewState(self.inner.initial(command), command)

    def step(self, state: SlewState, sample: Sample) -> tuple[SlewState, Action]:
        sample = with_applied(sample, state.command)
        inner, action = self.inner.step(state.inner, sample)
        wanted = action.command
        if wanted is None:
            return SlewState(inner, state.command), action
        applied = sample.applied
        before = state.command if applied is None or not same_shape(applied, wanted) else applied
        if not is_usable(wanted) or not same_shape(before, wanted):
            return SlewState(inner, state.command), hold_invalid(wanted)
        command, cut = slew_value(before, wanted, self.rise, self.fall)
        if cut:
            reason = f"slowed to {command} (wanted {wanted})"
            action = limited(action, command, cut, reason, ReasonCode.SLEW_LIMITED)
        return SlewState(inner, command), action
