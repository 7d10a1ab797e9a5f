"""Bumpless: start any controller smoothly from where the actuator stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flyball.control.controllers.common import HOLD_NOT_FINITE, as_tuple, check_between
from flyball.control.step import Action, Controller, Sample, Value, before_offset, is_usable, shifted
from flyball.control.wrappers.common import check_inner, hold_invalid, same_shape


@dataclass(frozen=True, slots=True)
class BumplessState:
    """`start` is where the actuator stood until the first command was given; `offset`: what is left of the gap."""

    inner: Any
    start: Value | None
    offset: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bumpless:
    """Takes over an actuator without a jump, and fades to what the inner controller wants.

    Formula: u'(k) = u(k) + d(k), d(0) = command at the start − u(0), d(k) = fade·d(k−1). For controllers that
    have no memory to start from, such as P with a given bias; those with an integral start smoothly by
    themselves. The inner controller gets applied − d, which is what it would have had to ask for.

    >>> from flyball.control.controllers.fixed import Fixed
    >>> smooth = Bumpless(Fixed(10.0), fade=0.5)
    >>> state = smooth.initial(2.0)
    >>> for k in range(4):
    ...     state, action = smooth.step(state, Sample(k, 1.0, setpoint=1.0, measurement=1.0))
    ...     print(action.command)
    2.0
    6.0
    8.0
    9.0
    """

    inner: Controller[Any] = field(metadata={"help": "the controller that takes over"})
    fade: float = field(
        default=0.8, metadata={"help": "part of the gap that is left after each sample, from 0 to below 1"}
    )

    def __post_init__(self) -> None:
        check_inner(self)
        check_between(self, "fade", 0.0, 1.0, high_open=True)

    def initial(self, command: Value) -> BumplessState:
        return BumplessState(self.inner.initial(command), command, (0.0,) * len(as_tuple(command)))

    def step(self, state: BumplessState, sample: Sample) -> tuple[BumplessState, Action]:
        applied = sample.applied
        if applied is not None and is_usable(applied) and len(as_tuple(applied)) == len(state.offset):
            sample = before_offset(sample, state.offset)
        inner, action = self.inner.step(state.inner, sample)
        wanted = action.command
        if wanted is None:
            return BumplessState(inner, state.start, state.offset), action
        if not is_usable(wanted) or len(as_tuple(wanted)) != len(state.offset):
            held_state = BumplessState(inner, state.start, state.offset)
            return held_state, hold_invalid(wanted)
        if state.start is None or not same_shape(state.start, wanted):
            offset = tuple(self.fade * d for d in state.offset)
        else:
            offset = tuple(s - w for s, w in zip(as_tuple(state.start), as_tuple(wanted), strict=True))
        command = shifted(wanted, offset)
        if not is_usable(command):
            return BumplessState(inner, state.start, state.offset), HOLD_NOT_FINITE
        parts = {**action.parts, "transfer": offset[0]} if len(offset) == 1 else action.parts
        return BumplessState(inner, None, offset), Action(
            command, parts, action.saturated, action.reason, action.code
        )
