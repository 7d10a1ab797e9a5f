"""How many events a lane may take in, by the free space of its result queue (PI) and by its pace."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flyball.control.controllers.pi import Pi, PiState
from flyball.control.design.design import design
from flyball.control.filters import ewma
from flyball.control.gains import Gains
from flyball.control.limits import clamp
from flyball.control.models import first_order
from flyball.control.step import Sample
from flyball.errors import InvalidValue

_KEEP_SIZE = 0.7
_KEEP_PACE = 0.7
_DOUBTED_SPREAD = 0.1  # sizes that differ by less tell nothing about c and s
_MOST_GROWTH = 8.0  # from one batch to the next
_MOST_GROWTH_IF_SLOW = 1.5
_SLOW = 1.25
_FIRST_EVENT_BYTES = 1024.0
_WORST_FACTOR = 2.0
_KEEP_WORST = 0.98
_ENOUGH_TO_LEARN = 50
_LEAST_REST = 0.1  # of an interval's budget


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
    """Flow control of a lane's result queue: its size, the set point of its free space, the interval.

    `controller` holds it. `played`: an experiment instead of control, bytes to admit in one interval after the
    other; the last value stays.
    """

    limit_bytes: int
    reference_bytes: int
    interval_s: float = 2.0
    controller: Pi = field(default_factory=flow_controller)
    played: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.reference_bytes < self.limit_bytes:
            raise InvalidValue(
                f"the free space to hold, {self.reference_bytes} bytes, must be between 0 and the size of the "
                f"result queue, {self.limit_bytes} bytes"
            )
        if not self.interval_s > 0:
            raise InvalidValue(f"the interval of flow control must be > 0 s, got {self.interval_s}")


@dataclass(frozen=True, slots=True)
class FlowState:
    """`budget_bytes` is what may still be admitted in the interval that began at `since_s`; `granted_bytes` is
    what was, and `decided_bytes` was decided for all of it. Sizes are of results per event admitted: the average,
    and the largest seen of late."""

    controller: PiState
    since_s: float
    budget_bytes: float
    granted_bytes: float = 0.0
    event_bytes: float | None = None
    worst_event_bytes: float | None = None
    events: int = 0
    result_bytes: int = 0
    intervals: int = 0
    decided_bytes: float = 0.0


def flow_start(flow: FlowControl, now_s: float, free_bytes: float, events: int, result_bytes: int) -> FlowState:
    """At first, fill what is free beyond the reference: with a = 1 that is where the first step would settle."""
    first = flow.played[0] if flow.played else clamp(free_bytes - flow.reference_bytes, 0.0, flow.limit_bytes)
    return FlowState(
        flow.controller.initial(first),
        now_s,
        first,
        events=events,
        result_bytes=result_bytes,
        decided_bytes=first,
    )


def flow_step(
    flow: FlowControl, state: FlowState, now_s: float, free_bytes: float, events: int, result_bytes: int
) -> FlowState:
    """Learn the size of results from the totals so far; when an interval is over, decide the next one's budget.

    The controller gets the applied command (backlog, pace or free space may have allowed less than it asked
    for), so its integral does not wind up. What is free beyond the reference may always come in at once:
    as a = 1, that cannot take the free space below the reference, and a queue that is emptied as fast as it fills
    holds nobody up.
    """
    state = _learned(state, events, result_bytes)
    if now_s - state.since_s < flow.interval_s:
        return state
    sample = Sample(now_s, now_s - state.since_s, flow.reference_bytes, free_bytes, applied=state.granted_bytes)
    memory, action = flow.controller.step(state.controller, sample)
    assert isinstance(action.command, float)
    interval = state.intervals + 1
    wanted = max(action.command, free_bytes - flow.reference_bytes)
    if flow.played:
        wanted = flow.played[min(interval, len(flow.played) - 1)]
    budget = clamp(wanted, 0.0, flow.limit_bytes)
    return replace(
        state,
        controller=memory,
        since_s=now_s,
        budget_bytes=budget,
        granted_bytes=0.0,
        intervals=interval,
        decided_bytes=budget,
    )


def admissible(state: FlowState, free_bytes: float) -> int:
    """Events that may be admitted now: within the budget on average, and within the free space at worst.

    >>> state = FlowState(PiState(0.0), 0.0, budget_bytes=1000.0, event_bytes=10.0, worst_event_bytes=50.0)
    >>> admissible(state, 1e6), admissible(state, 200.0)
    (100, 4)

    A small rest of the budget waits for the next interval: a batch costs more than it would bring.

    >>> admissible(replace(state, budget_bytes=90.0, decided_bytes=1000.0), 1e6)
    0
    """
    if state.budget_bytes < _LEAST_REST * state.decided_bytes:
        return 0
    by_budget = state.budget_bytes / (state.event_bytes or _FIRST_EVENT_BYTES)
    by_space = free_bytes / (state.worst_event_bytes or _FIRST_EVENT_BYTES)
    return max(0, math.floor(min(by_budget, by_space)))


def admitted(state: FlowState, events: int) -> FlowState:
    """Subtract the expected results of admitted events from the budget."""
    expected = events * (state.event_bytes or _FIRST_EVENT_BYTES)
    return replace(
        state,
        budget_bytes=max(0.0, state.budget_bytes - expected),
        granted_bytes=state.granted_bytes + expected,
    )


def _learned(state: FlowState, events: int, result_bytes: int) -> FlowState:
    more = events - state.events
    if more < _ENOUGH_TO_LEARN:
        return state  # of few events the entry's own weight would be learned, not theirs
    size = max(1.0, (result_bytes - state.result_bytes) / more)
    average = ewma(state.event_bytes, size, _KEEP_SIZE)
    worst = max(_WORST_FACTOR * size, _KEEP_WORST * (state.worst_event_bytes or 0.0))
    return replace(state, event_bytes=average, worst_event_bytes=worst, events=events, result_bytes=result_bytes)


@dataclass(frozen=True, slots=True)
class Pace:
    """How large a batch may be without being more than an interval's work: a large batch is dead time.

    A batch of n events takes T ≈ c + s·n. Both are told apart by averages of n, T, n² and n·T; while all batches
    are of one size c counts as nothing. Where c is long, as at the start or under CPU load, small batches would be
    all overhead: at least half an interval of every batch is work.

    >>> pace = Pace().after(events=1000, seconds=0.25)
    >>> pace.most_events(interval_s=2.0, at_least=500)
    8000
    """

    events: float | None = None
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def after(self, events: int, seconds: float) -> Pace:
        if events <= 0 or seconds <= 0:
            return self
        if self.events is None:
            return Pace(float(events), seconds, float(events) ** 2, events * seconds)
        return Pace(
            ewma(self.events, events, _KEEP_PACE),
            ewma(self.seconds, seconds, _KEEP_PACE),
            ewma(self.squares, events * events, _KEEP_PACE),
            ewma(self.products, events * seconds, _KEEP_PACE),
        )

    def most_events(self, interval_s: float, at_least: int) -> int:
        if self.events is None:
            return at_least
        whole = self.seconds / self.events
        doubt = (_DOUBTED_SPREAD * self.events) ** 2
        spread = self.squares - self.events**2
        together = self.products - self.events * self.seconds
        slow = self.seconds > _SLOW * interval_s
        growth = _MOST_GROWTH_IF_SLOW if slow else _MOST_GROWTH
        if slow and spread < doubt:
            # Is it c or the events? Another size tells: a smaller one if there is, for a large batch is dead time.
            smaller = self.events / _MOST_GROWTH_IF_SLOW
            return int(smaller if smaller > at_least else max(at_least, growth * self.events))
        per_event_s = clamp((together + doubt * whole) / (spread + doubt), whole / _MOST_GROWTH, whole)
        base_s = self.seconds - per_event_s * self.events
        work_s = max(interval_s - base_s, interval_s / 2)
        return max(at_least, int(min(work_s / per_event_s, growth * self.events)))


def shares_fit(allowed: Sequence[int], weights: Sequence[float]) -> int:
    """The most events of which every lane's share is within what that lane may take.

    >>> shares_fit([100, 30], [0.5, 0.5])
    60
    """
    return min((math.floor(most / weight) for most, weight in zip(allowed, weights, strict=True) if weight > 0))
