"""Saturation: keep a command within the range of its actuator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from flyball.control.limits import clamp_value
from flyball.control.step import Action, Controller, Sample, Value, is_usable
from flyball.control.wrappers.common import (
    check_inner,
    hold_invalid,
    limited,
    same_shape,
    saturation_code,
    with_applied,
)
from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class SaturationState:
    """`command` is what was let through last."""

    inner: Any
    command: Value


@dataclass(frozen=True, slots=True)
class Saturation:
    """Cuts the command at the limits of the actuator, without wind-up.

    Formula: u' = min(max(u, low), high). The inner controller gets u' as the applied command in its next sample
    (by the actuator, or by this wrapper where the actuator says nothing) and corrects its memory.

    >>> from flyball.control.controllers.pi import Pi
    >>> limited = Saturation(Pi(kp=0.0, ki=1.0), low=0.0, high=10.0)
    >>> state = limited.initial(9.0)
    >>> for measured in (0.0, 0.0, 0.0, 101.0):  # three samples far below the goal, then just above it
    ...     state, action = limited.step(state, Sample(0.0, 1.0, setpoint=100.0, measurement=measured))
    ...     print(action.command, action.saturated)
    10.0 1
    10.0 1
    10.0 1
    9.0 0

    Source: conditioning by back-calculation.
    """

    inner: Controller[Any] = field(metadata={"help": "the controller whose command is limited"})
    low: float | tuple[float, ...] = field(metadata={"help": "least command, or one for each actuator"})
    high: float | tuple[float, ...] = field(metadata={"help": "greatest command, or one for each actuator"})

    def __post_init__(self) -> None:
        check_inner(self)
        lows = self.low if isinstance(self.low, tuple) else (self.low,)
        highs = self.high if isinstance(self.high, tuple) else (self.high,)
        size = max(len(lows), len(highs))
        if {len(lows), len(highs)} - {1, size}:
            raise InvalidValue(
                f"Saturation.low and high must have the same length, got {self.low} and {self.high}"
            )
        for low, high in zip(lows * size if len(lows) == 1 else lows, highs * size, strict=False):
            if not low <= high:  # NaN compares false too
                raise InvalidValue(f"Saturation.low must be <= high, got low={self.low!r}, high={self.high!r}")

    def initial(self, command: Value) -> SaturationState:
        for limit in (self.low, self.high):
            if isinstance(limit, tuple) and not same_shape(limit, command):
                raise InvalidValue(f"Saturation.low and high must fit the command {command!r}, got {limit!r}")
        return SaturationState(self.inner.initial(command), command)

    def step(self, state: SaturationState, sample: Sample) -> tuple[SaturationState, Action]:
        inner, action = self.inner.step(state.inner, self._within(with_applied(sample, state.command)))
        wanted = action.command
        if wanted is None:
            return SaturationState(inner, state.command), action
        if not is_usable(wanted) or not same_shape(
            wanted, state.command
        ):  # only a foreign controller would: never pass it to an actuator
            return SaturationState(inner, state.command), hold_invalid(wanted)
        command, cut = clamp_value(wanted, self.low, self.high)
        if cut:
            reason = f"limited to {command} (wanted {wanted})"
            action = limited(action, command, cut, reason, saturation_code(cut))
        return SaturationState(inner, command), action

    def _within(self, sample: Sample) -> Sample:
        """The sample with the limits of this wrapper, within those that it came with."""
        low, high = self.low, self.high
        if sample.limits is not None:
            low, high = clamp_value(low, *sample.limits)[0], clamp_value(high, *sample.limits)[0]
        return replace(sample, limits=(low, high))
