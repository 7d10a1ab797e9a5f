"""Dither: fractions of a unit on an actuator that knows whole units only.

A prefetch window is a whole number; where one unit is worth 60 messages a second, rounding alone makes the
rate wander by tens. A first-order sigma-delta modulator instead chooses between the two neighbours of the
wanted value so that their running mean is the wanted value: the error it has made so far is added to what is
wanted next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from flyball.control.controllers.common import as_tuple
from flyball.control.limits import clamp
from flyball.control.step import Action, Controller, Sample, Value, is_usable, seen
from flyball.control.wrappers.common import check_inner, hold_invalid


@dataclass(frozen=True, slots=True)
class DitherState:
    """`residue` is what was wanted so far minus what was sent, always within ±1/2."""

    residue: float = 0.0


def dither_step(state: DitherState, wanted: float) -> tuple[DitherState, int]:
    """The whole number to set now, for actuators that dither faster than their loop samples.

    out = round(wanted + residue), residue += wanted − out. Since |residue| ≤ 1/2, after n steps the mean of
    the outputs is within 1/(2n) of the mean of what was wanted. The output is always one of the two
    neighbours of `wanted`, so whole-numbered limits that hold for `wanted` hold for it too.

    >>> state, whole_command = DitherState(), []
    >>> for _ in range(8):
    ...     state, whole = dither_step(state, 6.7)
    ...     whole_command.append(whole)
    >>> whole_command, sum(whole_command) / 8
    ([7, 6, 7, 7, 7, 6, 7, 7], 6.75)
    """
    total = wanted + state.residue
    out = int(clamp(math.floor(total + 0.5), math.floor(wanted), math.ceil(wanted)))
    return DitherState(clamp(total - out, -0.5, 0.5)), out


@dataclass(frozen=True, slots=True)
class DitherWrapperState:
    """`wanted` is what the inner controller asked for last, `whole_command` the whole numbers it became."""

    inner: Any
    wanted: Value
    whole_command: Value = field(metadata={"stored_as": "given"})
    residues: tuple[DitherState, ...]


@dataclass(frozen=True, slots=True)
class Dither:
    """Gives whole numbers whose running mean is the wanted command (sigma-delta).

    The inner controller must not mistake the dither for a limit: where exactly the dithered value was
    applied, it gets its own, fractional command as the applied one. Put limits inside.

    >>> from flyball.control.controllers.fixed import Fixed
    >>> whole = Dither(Fixed(2.25))
    >>> state, whole_command = whole.initial(2.0), []
    >>> for k in range(8):
    ...     state, action = whole.step(state, Sample(k, 1.0, setpoint=1.0, measurement=1.0))
    ...     whole_command.append(action.command)
    >>> whole_command
    [2.0, 3.0, 2.0, 2.0, 2.0, 3.0, 2.0, 2.0]

    Source: first-order sigma-delta modulation.
    """

    inner: Controller[Any] = field(metadata={"help": "the controller whose command becomes whole numbers"})

    def __post_init__(self) -> None:
        check_inner(self)

    def initial(self, command: Value) -> DitherWrapperState:
        residues = (DitherState(),) * len(as_tuple(command))
        return DitherWrapperState(self.inner.initial(command), command, command, residues)

    def step(self, state: DitherWrapperState, sample: Sample) -> tuple[DitherWrapperState, Action]:
        applied = sample.applied
        if not is_usable(applied) or applied == state.whole_command:
            sample = seen(sample, sample.measurement, state.wanted)
        inner, action = self.inner.step(state.inner, sample)
        wanted = action.command
        if wanted is None:
            return DitherWrapperState(inner, state.wanted, state.whole_command, state.residues), action
        numbers = as_tuple(wanted)
        if not is_usable(wanted) or len(numbers) != len(state.residues):
            held_state = DitherWrapperState(inner, state.wanted, state.whole_command, state.residues)
            return held_state, hold_invalid(wanted)
        pairs = [dither_step(residue, number) for residue, number in zip(state.residues, numbers, strict=True)]
        whole = tuple(float(out) for _, out in pairs)
        whole_command: Value = whole if isinstance(wanted, tuple) else whole[0]
        after = DitherWrapperState(inner, wanted, whole_command, tuple(residue for residue, _ in pairs))
        return after, Action(whole_command, action.parts, action.saturated, action.reason, action.code)
