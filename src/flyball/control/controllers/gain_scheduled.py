"""Gain-scheduled: other PID gains in other regions of a measured quantity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from flyball.control.controllers.common import (
    applied_or,
    as_scalar,
    check_between,
    check_choice,
    check_finite,
    check_whole,
)
from flyball.control.controllers.pid import Pid, PidState
from flyball.control.step import Action, ReasonCode, Sample, Value
from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Region:
    """Gains that hold from a value of the scheduling quantity up to the next region's."""

    above: float = field(metadata={"help": "the region begins at this value; the first one also holds below it"})
    kp: float = field(metadata={"help": "proportional gain Kp in this region"})
    ki: float = field(metadata={"help": "integral gain Ki in this region"})
    kd: float = field(default=0.0, metadata={"help": "derivative gain Kd in this region"})

    def __post_init__(self) -> None:
        check_finite(self, "above", "kp", "ki", "kd")


@dataclass(frozen=True, slots=True)
class GainScheduledState:
    """`region` is None until the scheduling quantity was seen."""

    region: int | None
    pid: PidState


@dataclass(frozen=True, slots=True)
class GainScheduled:
    """PID whose gains follow the set point or a measured disturbance: for plants that change with the workload.

    Formula: PID with the gains of the region in which the scheduling quantity s lies. A region is entered at its
    border and left only when s is `hysteresis` beyond it, so that noise at a border does not switch at each
    sample. A switch is bumpless: the new gains continue from the command that was applied. While s is missing
    the gains stay. Each region's gains are designed and verified with that region's model; slow changes of s
    are assumed.

    >>> slow, fast = Region(above=0.0, kp=0.0, ki=0.01), Region(above=500.0, kp=0.0, ki=0.05)
    >>> loop = GainScheduled(regions=(slow, fast), by="disturbance")
    >>> state = loop.initial(10.0)
    >>> for load in (100.0, 900.0):
    ...     state, action = loop.step(state, Sample(0.0, 1.0, 400.0, 390.0, disturbances=(load,)))
    ...     print(round(action.command, 3), action.reason)
    10.1 gains of the region from 0
    10.6 gains of the region from 500 (switched)

    Source: models per workload profile, future work of the prefetch paper.
    """

    regions: tuple[Region, ...] = field(metadata={"help": "regions with their gains, in rising order of `above`"})
    by: Literal["setpoint", "disturbance"] = field(
        default="setpoint", metadata={"help": "the quantity that chooses the region"}
    )
    index: int = field(default=0, metadata={"help": "which of the measured disturbances, counted from 0"})
    hysteresis: float = field(
        default=0.0, metadata={"help": "distance beyond a border at which the region changes"}
    )
    derivative_filter: float = field(
        default=0.0, metadata={"help": "part of the old derivative that stays, from 0 to below 1"}
    )

    def __post_init__(self) -> None:
        borders = [region.above for region in self.regions]
        if not borders or any(after <= before for before, after in pairwise(borders)):
            raise InvalidValue(
                f"GainScheduled.regions must be at least one, with rising `above`, got `above` = {borders}"
            )
        check_choice(self, "by", ("setpoint", "disturbance"))
        check_whole(self, "index", 0)
        check_between(self, "hysteresis", 0.0, math.inf, high_open=True)
        check_between(self, "derivative_filter", 0.0, 1.0, high_open=True)

    def initial(self, command: Value) -> GainScheduledState:
        return GainScheduledState(None, PidState(as_scalar(command)))

    def step(self, state: GainScheduledState, sample: Sample) -> tuple[GainScheduledState, Action]:
        number = self._region(state.region, sample)
        region = self.regions[number]
        pid = Pid(region.kp, region.ki, region.kd, self.derivative_filter)
        switched = state.region is not None and number != state.region
        memory = pid.initial(applied_or(sample, state.pid.command)) if switched else state.pid
        memory, action = pid.step(memory, sample)
        after = GainScheduledState(number, memory)
        if action.command is None:
            return after, action
        reason = f"gains of the region from {region.above:g}" + (" (switched)" if switched else "")
        code = ReasonCode.GAINS_CHANGED if switched else ReasonCode.UNSPECIFIED
        return after, Action(action.command, action.parts, action.saturated, reason, action.code or code)

    def _region(self, current: int | None, sample: Sample) -> int:
        quantity = self._quantity(sample)
        if quantity is None:
            return current or 0
        last = len(self.regions) - 1
        number = 0 if current is None else current
        margin = 0.0 if current is None else self.hysteresis
        while number < last and quantity >= self.regions[number + 1].above + margin:
            number += 1
        while number > 0 and quantity < self.regions[number].above - margin:
            number -= 1
        return number

    def _quantity(self, sample: Sample) -> float | None:
        quantity: Value | None
        if self.by == "setpoint":
            quantity = sample.setpoint
        elif self.index < len(sample.disturbances):
            quantity = sample.disturbances[self.index]
        else:
            return None
        if quantity is None or isinstance(quantity, tuple) or not math.isfinite(quantity):
            return None
        return quantity
