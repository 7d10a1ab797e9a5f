"""PI+FF: PI that trims what a feed-forward from the set point or measured disturbances misses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    back_calculate,
    check_finite,
    check_finite_tuple,
    hold_unusable,
    scalar_error,
    tracking_time,
)
from flyball.control.step import Action, Disturbances, Sample, Value


@dataclass(frozen=True, slots=True)
class PiFfState:
    """`disturbances` are the last usable disturbances; None where there was none yet."""

    command: float
    integral: float | None = None
    disturbances: tuple[float | None, ...] = field(default=(), metadata={"stored_as": "seen"})


@dataclass(frozen=True, slots=True)
class PiFf:
    """PI plus feed-forward: moves at once with a new goal or a measured disturbance, and trims the rest.

    Formula: u(k) = F(k) + Kp·e(k) + I(k),  I(k) = I(k−1) + Ki·e(k),  F(k) = Kr·r(k) + Σ Kd_j·d_j(k).

    With a plant of steady-state gain G, Kr = 1/G brings the goal at once where the model is right. For a
    window, Little's law gives the feed-forward: window = rate × residence time; measure that product as a
    disturbance and give it the gain 1. Feed-forward does not change the poles of the loop. A disturbance that
    is missing or not finite keeps its last usable value (or counts as 0), so that a failed sensor does not
    move the actuator.

    >>> loop = PiFf(kp=0.0, ki=0.01, disturbance_gains=(1.0,))
    >>> state = loop.initial(12.0)
    >>> for rate, residence_s in ((100.0, 0.1), (200.0, 0.1)):  # the load doubles: so does its part of the window
    ...     sample = Sample(0.0, 1.0, setpoint=400.0, measurement=400.0, disturbances=(rate * residence_s,))
    ...     state, action = loop.step(state, sample)
    ...     print(action.command, dict(action.parts))
    12.0 {'ff': 10.0, 'p': 0.0, 'i': 2.0}
    22.0 {'ff': 20.0, 'p': 0.0, 'i': 2.0}

    Source: the prefetch and event-processing papers for the PI part; Little's law.
    """

    kp: float = field(metadata={"help": "proportional gain Kp: command per unit of error"})
    ki: float = field(metadata={"help": "integral gain Ki: command per unit of error and sample"})
    setpoint_gain: float = field(
        default=0.0, metadata={"help": "Kr: command per unit of set point; 1/gain of the plant where it is known"}
    )
    disturbance_gains: tuple[float, ...] = field(
        default=(), metadata={"help": "command per unit of each measured disturbance, in the loop's order"}
    )

    def __post_init__(self) -> None:
        check_finite(self, "kp", "ki", "setpoint_gain")
        check_finite_tuple(self, "disturbance_gains")

    def initial(self, command: Value) -> PiFfState:
        return PiFfState(as_scalar(command), None, (None,) * len(self.disturbance_gains))

    def step(self, state: PiFfState, sample: Sample) -> tuple[PiFfState, Action]:
        disturbances = self._last_usable(state.disturbances, sample.disturbances)
        error = scalar_error(sample)
        if error is None:
            return PiFfState(state.command, state.integral, disturbances), hold_unusable(sample)
        ff = self.setpoint_gain * as_scalar(sample.setpoint)
        for gain, disturbance in zip(self.disturbance_gains, disturbances, strict=True):
            if disturbance is not None:
                ff += gain * disturbance
        p = self.kp * error
        if state.integral is None:
            before = applied_or(sample, state.command) - p - ff
        else:
            before = back_calculate(state.integral, state.command, sample, tracking_time(self.kp, self.ki))
        integral = before + self.ki * error
        command = ff + p + integral
        if not math.isfinite(command):
            return state, HOLD_NOT_FINITE
        return PiFfState(command, integral, disturbances), Action(command, {"ff": ff, "p": p, "i": integral})

    def _last_usable(self, before: tuple[float | None, ...], now: Disturbances) -> tuple[float | None, ...]:
        fresh = [now[i] if i < len(now) else None for i in range(len(self.disturbance_gains))]
        return tuple(
            new if new is not None and math.isfinite(new) else old for old, new in zip(before, fresh, strict=True)
        )
