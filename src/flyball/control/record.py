"""The record of one step of one loop: the one type that every host of loops logs and sends to telemetry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from flyball.control.step import ReasonCode, Value

Mode: TypeAlias = Literal["advise", "shadow", "on"]
MODES: tuple[str, ...] = get_args(Mode)

_NO_PARTS: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)  # not frozen: building a frozen one of so many fields costs a publisher's step too much
class LoopRecord:
    """What one step of a loop did, and why.

    `setpoint` is None for a loop without one, such as a publisher's. `applied` is the command in force before the
    step, None where it is not known. `proposed` is what the controller asks for within the limits; `command` is
    what the actuator gets now, None where it is left alone (mode, freeze, nothing measured). `mode` is None where
    a record reports something besides a loop's step, such as a restart. `missed` counts samples that were due
    since the last one, this one included, and did not come. `alert` is the guard's. `reason` is for people;
    programs branch on its `code`.
    """

    loop: str
    time: float
    setpoint: Value | None
    measurement: Value | None
    applied: Value | None = None
    proposed: Value | None = None
    command: Value | None = None
    mode: Mode | None = None
    frozen: bool = False
    saturated: int = 0
    missed: int = 0
    parts: Mapping[str, float] = field(default_factory=lambda: _NO_PARTS)
    reason: str = ""
    alert: str = ""
    code: ReasonCode = ReasonCode.UNSPECIFIED
