"""What the wrappers share."""

from __future__ import annotations

from typing import Any

from flyball.control.step import Action, Controller, ReasonCode, Sample, Value, hold, is_usable, seen
from flyball.errors import InvalidValue


def with_applied(sample: Sample, let_through: Value) -> Sample:
    """The sample as the inner controller should see it: an unknown applied command is the one we let through."""
    if is_usable(sample.applied):
        return sample
    return seen(sample, sample.measurement, let_through)


def hold_invalid(wanted: Value) -> Action:
    """A hold for a command that must not reach an actuator; only a foreign controller asks for one."""
    return hold(f"the controller asked for {wanted}: held", ReasonCode.HELD_INVALID_COMMAND)


def limited(action: Action, command: Value, cut: int, reason: str, code: ReasonCode) -> Action:
    """The action with the command that a limit let through; what the controller said of its step comes first."""
    reason = f"{action.reason}; {reason}" if action.reason else reason
    return Action(command, action.parts, cut, reason, action.code or code)


def saturation_code(cut: int) -> ReasonCode:
    return ReasonCode.SATURATED_LOW if cut < 0 else ReasonCode.SATURATED_HIGH


def check_inner(owner: Any) -> None:
    if not isinstance(owner.inner, Controller):
        raise InvalidValue(
            f"{type(owner).__name__}.inner must be a controller (initial and step), got {owner.inner!r}"
        )


def same_shape(one: Value, other: Value) -> bool:
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other)
    return not isinstance(other, tuple)
