"""Dead band: leave the actuator alone while the error is small."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from flyball.control.controllers.common import as_tuple, check_between, vector_error
from flyball.control.step import Action, Controller, ReasonCode, Sample, Value, hold, seen
from flyball.control.wrappers.common import check_inner


@dataclass(frozen=True, slots=True)
class DeadBandState:
    inner: Any


@dataclass(frozen=True, slots=True)
class DeadBand:
    """Holds while the error is within a band, for actuators that are costly to move.

    Formula: |e| ≤ width: hold; otherwise the inner controller acts. Inside the band the inner controller sees a
    missing measurement, so it neither integrates the small error nor loses track of what was applied. For
    vectors every component must be within the band.

    >>> from flyball.control.controllers.pi import Pi
    >>> calm = DeadBand(Pi(kp=0.0, ki=0.1), width=5.0)
    >>> _, action = calm.step(calm.initial(10.0), Sample(0.0, 1.0, setpoint=400.0, measurement=397.0))
    >>> action.command, action.reason
    (None, 'the error is within the dead band of 5: held')
    """

    inner: Controller[Any] = field(metadata={"help": "the controller that acts outside the band"})
    width: float = field(metadata={"help": "greatest error, up or down, that is left alone"})

    def __post_init__(self) -> None:
        check_inner(self)
        check_between(self, "width", 0.0, math.inf, high_open=True)

    def initial(self, command: Value) -> DeadBandState:
        return DeadBandState(self.inner.initial(command))

    def step(self, state: DeadBandState, sample: Sample) -> tuple[DeadBandState, Action]:
        size = 0 if sample.measurement is None else len(as_tuple(sample.measurement))
        error = vector_error(sample, size)
        if error and max(map(abs, error)) <= self.width:
            inner, _ = self.inner.step(state.inner, seen(sample, None, sample.applied))
            return DeadBandState(inner), hold(
                f"the error is within the dead band of {self.width:g}: held", ReasonCode.WITHIN_TOLERANCE
            )
        inner, action = self.inner.step(state.inner, sample)
        return DeadBandState(inner), action
