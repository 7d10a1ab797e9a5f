"""LQR: linear-quadratic state feedback with integral action, for several actuators and sensors at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or_vector,
    as_tuple,
    check_matrix,
    hold_unusable,
    vector_error,
)
from flyball.control.step import Action, Sample, Value
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.control.design.lane_balance import LaneBalance
    from flyball.control.models import Array

Matrix: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class LqrState:
    """`command` was asked for last; `earlier` were applied before it, newest first."""

    command: tuple[float, ...]
    earlier: tuple[tuple[float, ...], ...] = ()
    integral: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Lqr:
    """Vector state feedback with integral action: for actuators that act on each other, such as shares of a load.

    Formula: u(k) = I(k) − Ky·y(k) − Σⱼ Kuⱼ·u(k−j),  I(k) = I(k−1) + Ki·e(k),  with a row for each actuator. Ku has
    the blocks Ku₁ Ku₂ … side by side; a plant whose actuators act one interval late needs one block. Anti-windup
    and start are those of state feedback, actuator by actuator; one set point stands for all sensors.

    Balancing lanes: only the differences between N lanes can be controlled by sharing out a load, their mean
    cannot. `flyball.control.design.lane_balance.balance` designs on the N−1 differences and gives gains in lane
    coordinates, whose rows and columns sum to zero: the sum of the shares never changes, and the set point
    that all lanes share drops out. Three lanes with one interval of delay, the third twice as slow:

    >>> from flyball.control.design.lane_balance import balance
    >>> from flyball.control.models import first_order
    >>> lqr, slowness = for_lanes(balance(3, first_order(0.6, 2.5, delay=1))), (1.0, 1.0, 2.0)
    >>> y, under_way = (0.0, 0.0, 0.0), (1 / 3, 1 / 3, 1 / 3)
    >>> state = lqr.initial(under_way)
    >>> for k in range(100):
    ...     state, action = lqr.step(state, Sample(k, 1.0, setpoint=0.0, measurement=y))
    ...     y = tuple(0.6 * yi + 2.5 * si * wi for yi, si, wi in zip(y, slowness, under_way))
    ...     under_way = action.command
    >>> [round(share, 3) for share in under_way]
    [0.4, 0.4, 0.2]

    Source: the event-processing paper, load balancing of more than two lanes.
    """

    ki: tuple[tuple[float, ...], ...] = field(
        metadata={"help": "integral gains: a row an actuator, a column a sensor"}
    )
    ky: tuple[tuple[float, ...], ...] = field(metadata={"help": "gains on the measurements, in the same shape"})
    ku: tuple[tuple[float, ...], ...] = field(
        default=(),
        metadata={"help": "gains on the last applied commands: a row an actuator, blocks u(k−1), u(k−2), …"},
    )

    def __post_init__(self) -> None:
        check_matrix(self, "ki")
        check_matrix(self, "ky")
        check_matrix(self, "ku")
        actuators = len(self.ki)
        if not actuators or not self.ki[0]:
            raise InvalidValue(f"Lqr.ki must have at least one row and one column, got {self.ki!r}")
        if len(self.ky) != actuators or len(self.ky[0]) != len(self.ki[0]):
            raise InvalidValue(f"Lqr.ky must have the shape of ki, got ki={self.ki!r}, ky={self.ky!r}")
        if self.ku and (len(self.ku) != actuators or len(self.ku[0]) % actuators):
            raise InvalidValue(
                f"Lqr.ku must have {actuators} rows and a multiple of {actuators} columns, got {self.ku!r}"
            )

    @property
    def _delay(self) -> int:
        return len(self.ku[0]) // len(self.ki) if self.ku else 0

    def initial(self, command: Value) -> LqrState:
        start = tuple(map(float, as_tuple(command)))
        if len(start) != len(self.ki):
            raise InvalidValue(f"Lqr has {len(self.ki)} commands, got {command!r}")
        return LqrState(start, (start,) * self._delay)

    def step(self, state: LqrState, sample: Sample) -> tuple[LqrState, Action]:
        in_force = applied_or_vector(sample, state.command)
        under_way = (in_force, *state.earlier)[: self._delay]
        integral = state.integral
        if integral is not None:
            integral = tuple(i + a - c for i, a, c in zip(integral, in_force, state.command, strict=True))
        error = vector_error(sample, len(self.ki[0]))
        held_state = LqrState(in_force, under_way, integral)
        if error is None or sample.measurement is None:
            return held_state, hold_unusable(sample)
        fed_back = _product(self.ky, as_tuple(sample.measurement))
        if self.ku:
            on_commands = _product(self.ku, tuple(u for block in under_way for u in block))
            fed_back = tuple(a + b for a, b in zip(fed_back, on_commands, strict=True))
        if integral is None:
            integral = tuple(u + f for u, f in zip(in_force, fed_back, strict=True))
        integral = tuple(i + step for i, step in zip(integral, _product(self.ki, error), strict=True))
        command = tuple(i - f for i, f in zip(integral, fed_back, strict=True))
        if not all(map(math.isfinite, command)):
            return held_state, HOLD_NOT_FINITE
        return LqrState(command, under_way, integral), Action(command, _parts(integral, fed_back))


def for_lanes(balance: LaneBalance) -> Lqr:
    """The controller of a `LaneBalance` design: commands are shares, measurements are responses."""
    lanes = len(balance.on_responses)
    blocks = [block.tolist() for block in balance.on_shares]
    under_way = tuple(tuple(gain for block in blocks for gain in block[lane]) for lane in range(lanes))
    return Lqr(ki=_matrix(balance.on_sums), ky=_matrix(balance.on_responses), ku=under_way if blocks else ())


def _matrix(gains: Array) -> Matrix:
    return tuple(tuple(float(gain) for gain in row) for row in gains)


def _product(matrix: Matrix, vector: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sum(g * v for g, v in zip(row, vector, strict=True)) for row in matrix)


def _parts(integral: tuple[float, ...], fed_back: tuple[float, ...]) -> dict[str, float]:
    """Records hold numbers by name: the terms of each actuator, counted from 0."""
    parts: dict[str, float] = {}
    for number, (i, f) in enumerate(zip(integral, fed_back, strict=True)):
        parts[f"i{number}"], parts[f"x{number}"] = i, -f
    return parts
