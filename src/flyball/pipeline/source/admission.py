"""Admission control: reads the fill levels of the result queues, applies the policy and keeps its state.

It runs in the one process that plans a source's batches. Its state need not survive a restart: what was decided
for a batch is part of the batch's offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flyball.control.filters import ewma
from flyball.control.record import LoopRecord
from flyball.pipeline import policy
from flyball.pipeline.logs.levels import Level
from flyball.pipeline.policy import Balancer, BalanceState, BatchTimes, FlowControl, FlowState, Pace
from flyball.pipeline.telemetry import balance_record, flow_record

_LEAST_BATCH = 1_000
_KEEP_SERVICE = 0.5


@dataclass(frozen=True, slots=True)
class Admitted:
    """The largest number of events for the next batch, and the lanes' shares of them."""

    events: int
    weights: tuple[float, ...]


class Levels(Protocol):
    """The free-space sensor."""

    def read(self, lanes: Sequence[int]) -> Sequence[Level]: ...


class Admission:
    """Decides, batch by batch, how many events come in and how the lanes share them.

    Without `flow` only the pace limits a batch: to what earlier batches processed in an interval. With neither of
    them a batch is as large as allowed. `on_record` receives the records of the loops.
    """

    def __init__(
        self,
        lanes: Sequence[int],
        most_events: int,
        interval_s: float,
        levels: Levels | None = None,
        flow: FlowControl | None = None,
        balance: bool = False,
        paced: bool = True,
        on_record: Callable[[LoopRecord], None] = lambda _: None,
    ) -> None:
        self.lanes = tuple(lanes)
        self._most_events, self._interval_s = most_events, interval_s
        self._levels, self._flow, self._paced, self._on_record = levels, flow, paced, on_record
        self._pace = Pace()
        self._flows: dict[int, FlowState] = {}
        self._balancer = Balancer(len(self.lanes)) if balance else None
        self._weights = policy.equal_weights(len(self.lanes))
        self._balance: BalanceState | None = None
        self._balanced_at = float("-inf")
        self._service_s: dict[int, float] = {}
        self._seen_events: dict[int, int] = {}
        self._batch: tuple[float, int] | None = None
        self._times = BatchTimes()
        self.cycle: tuple[int, float] | None = None
        """events and seconds of the last batch that had any, from its planning to its end"""

    def decide(self, now_s: float, backlog: int) -> Admitted:
        """Decide on the next batch; call it when the previous one is complete."""
        self._batch_done(now_s)
        allowed = min(backlog, self._most_events)
        if self._paced:
            allowed = min(allowed, self._pace.most_events(self._interval_s, _LEAST_BATCH))
        if backlog <= 0:
            return Admitted(0, self._weights)
        if self._levels is not None:
            levels = dict(zip(self.lanes, self._levels.read(self.lanes), strict=True))
            self._rebalance(now_s, levels)
            if self._flow is not None:
                allowed = min(allowed, policy.shares_fit(self._within_flow(now_s, levels), self._weights))
        return Admitted(max(0, allowed), self._weights)

    def begin(self, now_s: float, counts: Sequence[int]) -> None:
        """Note that a batch begins with these numbers of events for the lanes."""
        self._batch = (now_s, sum(counts))
        for lane, count in zip(self.lanes, counts, strict=True):
            if lane in self._flows:
                self._flows[lane] = policy.admitted(self._flows[lane], count)

    def _batch_done(self, now_s: float) -> None:
        if self._batch is not None:
            began_s, events = self._batch
            self._batch = None
            if events > 0:
                self.cycle = (events, now_s - began_s)
                self._pace = self._pace.after(*self.cycle)
                self._times = self._times.after(now_s, now_s - began_s)

    def _within_flow(self, now_s: float, levels: dict[int, Level]) -> list[int]:
        assert self._flow is not None
        allowed = []
        for lane, level in levels.items():
            free = float(self._flow.limit_bytes - level.queued_bytes)
            state = self._flows.get(lane)
            if state is None:
                state = policy.flow_start(self._flow, now_s, free, level.events, level.appended_bytes)
            else:
                before = state
                state = policy.flow_step(self._flow, state, now_s, free, level.events, level.appended_bytes)
                if state.since_s != before.since_s:
                    self._on_record(flow_record(lane, self._flow, now_s, free, before, state))
            self._flows[lane] = state
            allowed.append(policy.admissible(state, free))
        return allowed

    def _rebalance(self, now_s: float, levels: dict[int, Level]) -> None:
        """Lanes of one batch end together, so the sensor is the time that each lane needed for its share."""
        for lane, level in levels.items():
            new = level.events != self._seen_events.get(lane)
            self._seen_events[lane] = level.events
            if new and level.batch_s is not None and level.batch_events > 0:
                self._service_s[lane] = ewma(self._service_s.get(lane), level.batch_s, _KEEP_SERVICE)
        if self._balancer is None or now_s - self._balanced_at < policy.BALANCE_EVERY_S:
            return
        state = self._balance or self._balancer.initial(self._weights)
        delays = [self._service_s.get(lane) for lane in self.lanes]
        self._balance = self._balancer.step(state, now_s, policy.BALANCE_EVERY_S, delays, self._times.load)
        known = [delay for delay in delays if delay is not None]
        if len(known) == len(delays) > 1:
            self._on_record(balance_record(now_s, known, self._weights, self._balance.weights))
        self._weights = self._balance.weights
        self._balanced_at = now_s
