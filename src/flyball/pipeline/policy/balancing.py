"""The lanes' weights, from their predicted delays: two lanes by PI on the log ratio, more by LQR."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.controllers.lqr import Lqr, for_lanes
from flyball.control.design import design
from flyball.control.filters import Timed, ewma, windowed_min
from flyball.control.gains import Gains
from flyball.control.lanes import balance
from flyball.control.limits import clamp
from flyball.control.models import Arx, first_order
from flyball.control.step import Sample
from flyball.control.verify_matrix import verify_matrix
from flyball.errors import InvalidValue
from flyball.pipeline.policy.splitting import equal_weights

_LEAST_WEIGHT = 0.02  # a lane that gets nothing tells nothing: it could never earn its share back
_SETTLING = 12.0
_KEEP = 0.5  # of the sensors' averages: what makes a lane first order
# Batches one after the other take T = c/(1−ρ) at load ρ, so a lane's delay answers its share with the
# sensitivity dlnT/dlnλ = ρ/(1−ρ). Each region is designed for the sensitivity at its upper end.
_REGIONS = ((0.0, 1.0), (0.5, 2.0), (0.7, 4.0))
_HYSTERESIS = 0.05


@dataclass(frozen=True, slots=True)
class BalanceState:
    """`memory` is the controller's; `region` the load region whose gains are in force (LQR only)."""

    memory: Any
    weights: tuple[float, ...]
    region: int = 0


@dataclass(frozen=True, slots=True)
class Balancer:
    """Shares for lanes so that their predicted delays become equal.

    The knobs are log weights: a lane's delay changes by a *factor* with its share, so logs make the plant linear:
    ln delay(k+1) = a·ln delay(k) + b·ln weight(k−1), b by load. Two lanes: one PI on ln(delay₀/delay₁), knob
    ln(weight₀/weight₁). More: LQR on the N−1 differences. Gains are scheduled by load with hysteresis.

    >>> balancer = Balancer(2)
    >>> state = balancer.initial()
    >>> for _ in range(3):
    ...     state = balancer.step(state, 0.0, 1.0, (2.0, 1.0), load=0.4)
    >>> state.weights[0] < 0.5 < state.weights[1]
    True
    """

    lanes: int

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise InvalidValue(f"a tier has at least 1 lane, not {self.lanes}")

    def initial(self, weights: Sequence[float] | None = None) -> BalanceState:
        start = tuple(weights) if weights is not None else equal_weights(self.lanes)
        return BalanceState(self._fresh(start, 0), start)

    def step(
        self, state: BalanceState, time_s: float, dt_s: float, delays_s: Sequence[float | None], load: float
    ) -> BalanceState:
        """`delays_s`: predicted delay of each lane, None where it is not known: then nothing moves."""
        known = [delay for delay in delays_s if delay is not None and delay > 0 and math.isfinite(delay)]
        if self.lanes == 1 or len(known) < self.lanes:
            return state
        logs = tuple(map(math.log, known))
        applied = _log_weights(state.weights)
        if self.lanes == 2:
            sample = Sample(
                time_s, dt_s, 0.0, logs[0] - logs[1], applied=applied[0] - applied[1], disturbances=(load,)
            )
            memory, action = _pi_of_two().step(state.memory, sample)
            if not isinstance(action.command, float):
                return state
            return BalanceState(memory, _weights((action.command / 2, -action.command / 2)))
        region = _region(state.region, load)
        before = state.memory if region == state.region else self._fresh(state.weights, region)
        after, action = _lqr_of(self.lanes, region).step(before, Sample(time_s, dt_s, 0.0, logs, applied=applied))
        if not isinstance(action.command, tuple):
            return state
        return BalanceState(after, _weights(action.command), region)

    def _fresh(self, weights: tuple[float, ...], region: int) -> Any:
        logs = _log_weights(weights)
        if self.lanes == 1:
            return None
        if self.lanes == 2:
            return _pi_of_two().initial(logs[0] - logs[1])
        return _lqr_of(self.lanes, region).initial(logs)


def lane_plant(sensitivity: float) -> Arx:
    """ln delay of a lane against its ln weight, one interval late."""
    return first_order(_KEEP, (1.0 - _KEEP) * sensitivity, delay=1)


@functools.cache
def _pi_of_two() -> GainScheduled:
    regions = []
    for above, sensitivity in _REGIONS:
        gains = design(lane_plant(sensitivity), "pi", settling=_SETTLING, overshoot=0.1).gains
        assert isinstance(gains, Gains)
        regions.append(Region(above, gains.kp, gains.ki))
    return GainScheduled(tuple(regions), by="disturbance", hysteresis=_HYSTERESIS)


@functools.cache
def _lqr_of(lanes: int, region: int) -> Lqr:
    found = balance(lanes, lane_plant(_REGIONS[region][1]))
    verdict = verify_matrix(found.design.model, found.design.gains)
    if not verdict.accepted:
        raise InvalidValue(f"no balancing of {lanes} lanes passes the checks: {verdict.reason}")
    return for_lanes(found)


def _region(current: int, load: float) -> int:
    while current + 1 < len(_REGIONS) and load >= _REGIONS[current + 1][0] + _HYSTERESIS:
        current += 1
    while current > 0 and load < _REGIONS[current][0] - _HYSTERESIS:
        current -= 1
    return current


def _log_weights(weights: Sequence[float]) -> tuple[float, ...]:
    """Log weights, centred: only their differences mean anything."""
    logs = [math.log(max(weight, 1e-9)) for weight in weights]
    mean = sum(logs) / len(logs)
    return tuple(log - mean for log in logs)


def _weights(logs: Sequence[float]) -> tuple[float, ...]:
    top = max(logs)
    raw = [math.exp(log - top) for log in logs]
    total = sum(raw)
    shares = [max(_LEAST_WEIGHT / len(raw), share / total) for share in raw]
    return tuple(share / sum(shares) for share in shares)


def load_of(base_s: float, batch_s: float) -> float:
    """Load ρ of a lane from its batch times: T = c/(1−ρ), with c the time of an almost empty batch.

    >>> load_of(0.2, 0.5)
    0.6
    """
    return clamp(1.0 - base_s / batch_s, 0.0, 0.99) if batch_s > 0 else 0.0


_BASE_SPAN_S = 3600.0
_KEEP_TIME = 0.5


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """How long batches take of late, and the least time one took in the last hour: together they tell the load.

    >>> times = BatchTimes()
    >>> times.load
    0.0
    >>> for second, took_s in enumerate([0.2, 1.0, 1.0, 1.0, 1.0]):
    ...     times = times.after(float(second), took_s)
    >>> round(times.load, 2)
    0.79
    """

    least: Timed = ()
    average_s: float | None = None

    def after(self, now_s: float, took_s: float) -> BatchTimes:
        least = windowed_min(self.least, now_s, took_s, _BASE_SPAN_S)
        return BatchTimes(least, ewma(self.average_s, took_s, _KEEP_TIME))

    @property
    def load(self) -> float:
        return 0.0 if self.average_s is None else load_of(self.least[0][1], self.average_s)
