"""The lanes' weights, from their predicted delays: two lanes by PI on the log ratio, more by LQR."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.controllers.lqr import Lqr, for_lanes
from flyball.control.design.design import design
from flyball.control.design.lane_balance import balance
from flyball.control.filters import Timed, ewma, windowed_min
from flyball.control.gains import Gains
from flyball.control.limits import clamp
from flyball.control.models import Arx, first_order
from flyball.control.step import Sample
from flyball.control.verification.verify_matrix import verify_matrix
from flyball.errors import InvalidValue
from flyball.pipeline.policy.splitting import equal_weights

_LEAST_WEIGHT = 0.02  # a lane that gets nothing tells nothing: it could never earn its share back
_SETTLING = 12.0
_KEEP = 0.5  # of the sensors' averages: what makes a lane first order
# Batches one after the other take T = c/(1−ρ) at load ρ, so a lane's delay answers its share with the
# sensitivity dlnT/dlnλ = ρ/(1−ρ). Each region is designed for the sensitivity at its upper end.
_REGIONS = ((0.0, 1.0), (0.5, 2.0), (0.7, 4.0))
_HYSTERESIS = 0.05


BALANCE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class BalanceState:
    """`memory` is the controller's; `region` the load region whose gains are in force (LQR only)."""

    memory: Any
    weights: tuple[float, ...]
    region: int = 0


@dataclass(frozen=True, slots=True)
class Balancer:
    """Shares for lanes so that their predicted delays become equal.

    Commands are log weights: a lane's delay changes by a *factor* with its share, so logs make the plant linear:
    ln delay(k+1) = a·ln delay(k) + b·ln weight(k−1), b by load. Two lanes: one PI on ln(delay₀/delay₁) with
    the command ln(weight₀/weight₁). More: LQR on the N−1 differences. Gains are scheduled by load with hysteresis.

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
            raise InvalidValue(f"the number of lanes must be >= 1, got {self.lanes}")

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
_KEEP_RATE = 0.5


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Recent batch times, and the least of the last hour: their ratio measures the load.

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


_OVERDUE = 1.5  # times as long as batches take of late
_LEAST_DELAY_S = 0.05  # shorter ones are noise: lanes that have nothing to do are equally fast


@dataclass(frozen=True, slots=True)
class LaneDelay:
    """Predicted delay of a lane: what waits for it, what it works on included, over the rate of its batches.

    This sensor has the least dead time: it rises as soon as events pile up, long before they are late.
    What it showed since it was last read is averaged, for backlogs are saw teeth; `now_s` is what it shows now.

    A batch that is overdue tells before its end that the rate has fallen: what waited when the one before it ended
    has not been done since.

    >>> lane = LaneDelay().with_batch(0.0, events=1000, took_s=0.5).with_backlog(0.0, 3000).with_backlog(0.2, 1000)
    >>> lane.predicted_s, lane.with_backlog(3.0, 4000).now_s
    (1.0, 4.0)
    """

    rate: float | None = None
    now_s: float | None = None
    times: BatchTimes = field(default_factory=BatchTimes)
    sum_s: float = 0.0
    samples: int = 0
    ended_s: float = 0.0
    """When the last batch ended."""
    waited: int | None = None
    """Events that waited then; None: not looked at yet."""

    def with_batch(self, now_s: float, events: int, took_s: float) -> LaneDelay:
        rate = ewma(self.rate, events / took_s, _KEEP_RATE)
        return replace(self, rate=rate, times=self.times.after(now_s, took_s), ended_s=now_s, waited=None)

    def with_backlog(self, now_s: float, backlog: int) -> LaneDelay:
        if self.rate is None:
            return self
        waited = backlog if self.waited is None else self.waited
        rate, since_s = self.rate, now_s - self.ended_s
        if waited and since_s > _OVERDUE * (self.times.average_s or math.inf):
            rate = min(rate, waited / since_s)
        delay_s = max(_LEAST_DELAY_S, backlog / rate)
        return replace(self, now_s=delay_s, sum_s=self.sum_s + delay_s, samples=self.samples + 1, waited=waited)

    def read(self) -> LaneDelay:
        return replace(self, sum_s=0.0, samples=0)

    @property
    def predicted_s(self) -> float | None:
        return self.sum_s / self.samples if self.samples else None


_FAR_BEHIND = 2.0
_ALWAYS_ALLOWED_S = 0.3


def without_laggards(weights: Sequence[float], delays_s: Sequence[float | None]) -> tuple[float, ...]:
    """Weights with 0 for lanes that are more than twice as late as the others, until they have caught up.

    Weights move with the time that several batches take. A lane that is disturbed, or
    has died, would keep getting events that cannot be taken back, and those have the largest delays.

    >>> without_laggards([0.5, 0.5], [1.0, 1.9]), without_laggards([0.5, 0.5], [1.0, 2.1])
    ((0.5, 0.5), (1.0, 0.0))
    """
    known = [None if delay is None else max(_ALWAYS_ALLOWED_S, delay) for delay in delays_s]
    kept = []
    for lane, (weight, delay) in enumerate(zip(weights, known, strict=True)):
        others = [other for number, other in enumerate(known) if number != lane and other is not None]
        late = delay is not None and bool(others) and delay > _FAR_BEHIND * sum(others) / len(others)
        kept.append(0.0 if late else weight)
    total = sum(kept)
    return tuple(weight / total for weight in kept) if total > 0 else tuple(weights)


def with_joined(weights: Mapping[int, float], lanes: Sequence[int]) -> tuple[float, ...]:
    """Weights for lanes of which some are new: those get an equal share, the others keep their proportions.

    >>> with_joined({0: 0.75, 1: 0.25}, [0, 1, 2, 3])
    (0.375, 0.125, 0.25, 0.25)
    """
    known = sum(weights[lane] for lane in lanes if lane in weights)
    old = sum(lane in weights for lane in lanes)
    if not old or known <= 0:
        return equal_weights(len(lanes))
    part = old / len(lanes)
    return tuple(part * weights[lane] / known if lane in weights else 1 / len(lanes) for lane in lanes)
