"""Fixed: no feedback at all. The baseline every other controller is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from flyball.control.controllers.common import as_tuple, hold_unusable
from flyball.control.step import Action, ReasonCode, Sample, Value, is_usable
from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class FixedState:
    command: Value


@dataclass(frozen=True, slots=True)
class Fixed:
    """Keeps one command, whatever is measured.

    Formula: u(k) = value, or the command at the start where no value is given. It holds on a bad sample like
    every other controller, so that its telemetry shows the same gaps.

    >>> fixed = Fixed(10.0)
    >>> _, action = fixed.step(fixed.initial(3.0), Sample(0.0, 1.0, setpoint=400.0, measurement=120.0))
    >>> action.command
    10.0

    Source: the static settings with which the prefetch and publisher papers compare their loops.
    """

    value: float | tuple[float, ...] | None = field(
        default=None, metadata={"help": "the command; left out: the one in force at the start"}
    )

    def __post_init__(self) -> None:
        if self.value is not None and not is_usable(self.value):
            raise InvalidValue(f"Fixed.value must be a finite number, a tuple of them or None, got {self.value!r}")

    def initial(self, command: Value) -> FixedState:
        if self.value is None:
            return FixedState(command)
        if len(as_tuple(self.value)) != len(as_tuple(command)):
            raise InvalidValue(
                f"Fixed.value must have as many numbers as the command {command!r}, got {self.value!r}"
            )
        return FixedState(self.value)

    def step(self, state: FixedState, sample: Sample) -> tuple[FixedState, Action]:
        if not is_usable(sample.measurement) or not is_usable(sample.setpoint):
            return state, hold_unusable(sample)
        return state, Action(state.command, reason="fixed", code=ReasonCode.OPEN_LOOP)
