"""Every decision of the pipeline's first tier, pure: state and observation in, new state and decision out.

    admission   how many events a lane may take in, by the free space of its result queue (PI) and by its pace
    splitting   which lane gets how many events of a tick (error diffusion by weights)
    balancing   the weights, from the lanes' predicted delays (two lanes: PI on their log ratio; more: LQR)
    combining   whose results the combiner takes next, how far event time is settled, whom it stops waiting for

The acting files observe, call this one and carry out; the twin runs this very file.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.controllers.lqr import Lqr, for_lanes
from flyball.control.controllers.pi import Pi, PiState
from flyball.control.design import design
from flyball.control.filters import ewma
from flyball.control.gains import Gains
from flyball.control.lanes import balance
from flyball.control.limits import clamp
from flyball.control.models import Arx, first_order
from flyball.control.step import Sample
from flyball.control.verify_matrix import verify_matrix
from flyball.errors import InvalidValue

# --- admission --------------------------------------------------------------------------------------------------

_KEEP_SIZE = 0.7
_KEEP_PACE = 0.5
_FIRST_EVENT_BYTES = 1024.0
_WORST_FACTOR = 2.0


@functools.cache
def flow_controller() -> Pi:
    """The PI that holds a result queue's free space, designed and verified here.

    With the command in bytes admitted per interval the plant is known: free(k+1) = free(k) − u(k) + drained, that
    is a = 1, b = −1, without delay, for the next measurement comes after the batch is complete. Two poles at 0.5
    settle in 6 intervals with a gain margin above 2.

    >>> flow_controller()
    Pi(kp=-0.75, ki=-0.25)
    """
    gains = design(first_order(1.0, -1.0), "pi", poles=[0.5, 0.5]).gains
    assert isinstance(gains, Gains)
    return Pi(gains.kp, gains.ki)


@dataclass(frozen=True, slots=True)
class FlowControl:
    """How a lane's result queue is to be kept: its size, the free space to hold, how often to act."""

    limit_bytes: int
    reference_bytes: int
    interval_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.reference_bytes < self.limit_bytes:
            raise InvalidValue(
                f"the free space to hold, {self.reference_bytes} bytes, has to be between 0 and the size of the "
                f"result queue, {self.limit_bytes} bytes"
            )
        if not self.interval_s > 0:
            raise InvalidValue(f"the interval of flow control has to be above 0 s, not {self.interval_s}")


@dataclass(frozen=True, slots=True)
class FlowState:
    """`budget_bytes` is what may still be admitted in the interval that began at `since_s`; `granted_bytes` is
    what was. Sizes are of results per event admitted: the average, and the largest seen."""

    controller: PiState
    since_s: float
    budget_bytes: float
    granted_bytes: float = 0.0
    event_bytes: float | None = None
    worst_event_bytes: float | None = None
    events: int = 0
    result_bytes: int = 0


def flow_start(flow: FlowControl, now_s: float, free_bytes: float, events: int, result_bytes: int) -> FlowState:
    """At first, fill what is free beyond the reference: with a = 1 that is where the first step would settle."""
    first = clamp(free_bytes - flow.reference_bytes, 0.0, flow.limit_bytes)
    return FlowState(flow_controller().initial(first), now_s, first, events=events, result_bytes=result_bytes)


def flow_step(
    flow: FlowControl, state: FlowState, now_s: float, free_bytes: float, events: int, result_bytes: int
) -> FlowState:
    """Learn the size of results from the totals so far; when an interval is over, decide the next one's budget.

    The controller is told what really was admitted (backlog, pace or free space may have allowed less than it
    asked for), so its integral does not wind up.
    """
    state = _learned(state, events, result_bytes)
    if now_s - state.since_s < flow.interval_s:
        return state
    sample = Sample(now_s, now_s - state.since_s, flow.reference_bytes, free_bytes, applied=state.granted_bytes)
    memory, action = flow_controller().step(state.controller, sample)
    assert isinstance(action.command, float)
    budget = clamp(action.command, 0.0, flow.limit_bytes)
    return replace(state, controller=memory, since_s=now_s, budget_bytes=budget, granted_bytes=0.0)


def admissible(state: FlowState, free_bytes: float) -> int:
    """Events that may be admitted now: within the budget on average, and within the free space at worst.

    >>> state = FlowState(PiState(0.0), 0.0, budget_bytes=1000.0, event_bytes=10.0, worst_event_bytes=50.0)
    >>> admissible(state, 1e6), admissible(state, 200.0)
    (100, 4)
    """
    by_budget = state.budget_bytes / (state.event_bytes or _FIRST_EVENT_BYTES)
    by_space = free_bytes / (state.worst_event_bytes or _FIRST_EVENT_BYTES)
    return max(0, math.floor(min(by_budget, by_space)))


def admitted(state: FlowState, events: int) -> FlowState:
    """So many events were let in: their expected results are taken off the budget."""
    expected = events * (state.event_bytes or _FIRST_EVENT_BYTES)
    return replace(
        state,
        budget_bytes=max(0.0, state.budget_bytes - expected),
        granted_bytes=state.granted_bytes + expected,
    )


def _learned(state: FlowState, events: int, result_bytes: int) -> FlowState:
    more = events - state.events
    if more <= 0:
        return state
    size = max(1.0, (result_bytes - state.result_bytes) / more)
    average = ewma(state.event_bytes, size, _KEEP_SIZE)
    worst = max(_WORST_FACTOR * size, state.worst_event_bytes or 0.0)
    return replace(state, event_bytes=average, worst_event_bytes=worst, events=events, result_bytes=result_bytes)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast batches go through, so that none is larger than an interval's work: a large batch is dead time.

    A batch of n events takes T ≈ c + s·n. The rate n/T of a small batch is below capacity, but T is then below
    the interval too, and a bound of (n/T)·interval > n lets the next batch grow.

    >>> pace = Pace().after(events=1000, seconds=0.25)
    >>> pace.most_events(interval_s=2.0, at_least=500)
    8000
    """

    rate: float | None = None

    def after(self, events: int, seconds: float) -> Pace:
        if events <= 0 or seconds <= 0:
            return self
        return Pace(ewma(self.rate, events / seconds, _KEEP_PACE))

    def most_events(self, interval_s: float, at_least: int) -> int:
        return at_least if self.rate is None else max(at_least, int(self.rate * interval_s))


def shares_fit(allowed: Sequence[int], weights: Sequence[float]) -> int:
    """The most events of which every lane's share is within what that lane may take.

    >>> shares_fit([100, 30], [0.5, 0.5])
    60
    """
    return min((math.floor(most / weight) for most, weight in zip(allowed, weights, strict=True) if weight > 0))


# --- splitting --------------------------------------------------------------------------------------------------


def split(
    events: int, weights: Sequence[float], carry: Sequence[float]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Whole numbers of events by weights, and the rounding errors to carry into the next tick.

    The errors always sum to zero and stay below one event a lane, so shares are exact in the long run however
    small the ticks are.

    >>> counts, carry = split(1, [0.5, 0.5], [0.0, 0.0])
    >>> counts, split(1, [0.5, 0.5], carry)[0]
    ((1, 0), (0, 1))
    """
    wanted = [events * weight + owed for weight, owed in zip(weights, carry, strict=True)]
    counts = [max(0, math.floor(share)) for share in wanted]
    by_fraction = sorted(range(len(wanted)), key=lambda lane: (counts[lane] - wanted[lane], lane))
    for lane in by_fraction[: max(0, events - sum(counts))]:
        counts[lane] += 1
    surplus = sum(counts) - events  # a negative carry was cut at zero: take it from those that got most
    for lane in sorted(range(len(wanted)), key=lambda lane: wanted[lane] - counts[lane]):
        less = min(surplus, counts[lane])
        counts[lane] -= less
        surplus -= less
    return tuple(counts), tuple(share - count for share, count in zip(wanted, counts, strict=True))


def equal_weights(lanes: int) -> tuple[float, ...]:
    return (1.0 / lanes,) * lanes


# --- balancing --------------------------------------------------------------------------------------------------

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


# --- combining --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """How far a lane's results go: every tick up to `mark` is complete. `missing_since_s`: it keeps others waiting
    since then. `given_up`: too long, so nobody waits until it has caught up."""

    mark: int = -1
    missing_since_s: float | None = None
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Merge:
    """What the combiner remembers about order.

    `settled`: every result of every tick up to it has been taken (but those of lanes given up). `latest_s`: the
    latest event time among events of settled ticks. `ahead`: (mark, latest event time) of entries beyond that.
    """

    lanes: Mapping[int, LaneProgress]
    settled: int = -1
    latest_s: float = -math.inf
    ahead: tuple[tuple[int, float], ...] = ()


def next_lane(merge: Merge, waiting: Collection[int], now_s: float, timeout_s: float) -> tuple[Merge, int | None]:
    """Whose next entry to take: the lane that is farthest behind, ties by number, so that the order depends on
    the entries and not on when they came. None: wait, for that lane has none yet.

    A lane that keeps others waiting for longer than `timeout_s` is given up; its entries are taken whenever they
    come, and it counts again when it has caught up.

    >>> merge = Merge({0: LaneProgress(mark=5), 1: LaneProgress(mark=3)})
    >>> merge, lane = next_lane(merge, [0], now_s=10.0, timeout_s=2.0)
    >>> lane is None, next_lane(merge, [0], now_s=12.0, timeout_s=2.0)[1]
    (True, 0)
    """
    lanes = dict(merge.lanes)
    for number in sorted(number for number in waiting if number in lanes and lanes[number].given_up):
        return merge, number
    for _ in range(len(lanes)):  # each round either decides or gives one lane up
        live = [number for number, lane in lanes.items() if not lane.given_up]
        if not live:
            break
        first = min(live, key=lambda number: (lanes[number].mark, number))
        lane = lanes[first]
        if first in waiting:
            return _settled(replace(merge, lanes=lanes)), first
        if not any(number in waiting or lanes[number].mark > lane.mark for number in live):
            lanes[first] = replace(lane, missing_since_s=None)
            break
        since = now_s if lane.missing_since_s is None else lane.missing_since_s
        given_up = now_s - since >= timeout_s
        lanes[first] = replace(lane, missing_since_s=since, given_up=given_up)
        if not given_up:
            break
    return _settled(replace(merge, lanes=lanes)), None


def took(
    merge: Merge, lane: int, mark: int, latest_s: float | None, members: Collection[int], last: bool
) -> Merge:
    """An entry of a lane was taken: it completes its ticks up to `mark`; `members` are the lanes of that tick.

    A lane joins when it is first named, owing everything after what is settled, and leaves with its `last` entry.

    >>> merge = took(Merge({0: LaneProgress()}), 0, 0, 50.0, members=[0, 1], last=False)
    >>> merge.settled, merge.latest_s
    (-1, -inf)
    >>> merge = took(merge, 1, 0, 40.0, members=[0, 1], last=False)
    >>> merge.settled, merge.latest_s
    (0, 50.0)
    """
    lanes = dict(merge.lanes)
    for number in (*members, lane):
        lanes.setdefault(number, LaneProgress(mark=merge.settled))
    lanes[lane] = replace(lanes[lane], mark=max(lanes[lane].mark, mark), missing_since_s=None)
    ahead = merge.ahead if latest_s is None else (*merge.ahead, (mark, latest_s))
    if last:
        del lanes[lane]
        if not lanes:
            return _settled(Merge(lanes, max(merge.settled, mark), merge.latest_s, ahead))
    return _settled(Merge(lanes, merge.settled, merge.latest_s, ahead))


def _settled(merge: Merge) -> Merge:
    """Move `settled` as far as the lanes that count allow, and those that caught up count again."""
    live = [progress.mark for progress in merge.lanes.values() if not progress.given_up]
    settled = max(merge.settled, min(live, default=merge.settled))
    lanes = {
        number: replace(progress, given_up=progress.given_up and progress.mark < settled)
        for number, progress in merge.lanes.items()
    }
    latest = max((time_s for at, time_s in merge.ahead if at <= settled), default=-math.inf)
    ahead = tuple((at, time_s) for at, time_s in merge.ahead if at > settled)
    return Merge(lanes, settled, max(merge.latest_s, latest), ahead)
