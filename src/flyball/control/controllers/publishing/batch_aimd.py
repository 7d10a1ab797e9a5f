"""Batch AIMD: the publisher paper's rule for batch size and polling interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from flyball.control.controllers.common import check_between, check_choice, check_whole, hold_unusable
from flyball.control.controllers.publishing.signals import Batching, PublisherMeasurement, batching, measurement_of
from flyball.control.filters import ewma
from flyball.control.limits import clamp
from flyball.control.step import Action, ReasonCode, Sample, Value
from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class BatchAimdState:
    """`load` is λ_est and `capacity` η_est, both in messages a second; None: no estimate yet."""

    batch: float
    poll_s: float
    load: float | None = None
    capacity: float | None = None
    arrivals: float = 0.0
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class BatchAimd:
    """The published publisher rule: N by additive increase and halving, T_poll from the duration of a hand-over.

    Formulas, with the names of the paper:

    * λ_est = α·λ_est + (1−α)·λ_s at every poll, λ_s the arrivals since the last poll over the time;
    * T_poll = clamp(β·T_mpt, T_poll_min, T_poll_max), T_mpt the time to read and hand over a batch;
    * fewer than N messages at a poll: N = max(N/2, 1); a batch handed over within T_poll: N + 1; later: N − 1;
    * N ≤ N_max, from η_est = γ·η_est + (1−γ)·n/s: n transfers under way when one that took s was confirmed.

    The paper sets N_max = η_est, a rate where a count is meant (`ceiling="printed"`). By Little's law η_est·T
    messages are what the broker takes within the longest wait T = T_poll_max, which is the default
    (`ceiling="little"`). The paper leaves open what λ_est drives, so here it is shown and drives nothing: a
    ceiling of λ_est·T would keep a publisher from working off a backlog once arrivals cease.

    `workers` is the paper's pool: each has one message until the broker's confirm, so it is the window.

    >>> controller = BatchAimd()
    >>> state = controller.initial((4.0, 4.0, 0.05, 100.0))
    >>> polled = PublisherMeasurement(pending=2.0, arrivals=2.0, short_poll=1.0)
    >>> state, action = controller.step(state, Sample(1.0, 1.0, 0.0, tuple(polled)))
    >>> action.command, action.reason
    ((2.0, 2.0, 0.05, 64.0), 'fewer than N messages at the poll: N halved')

    Source: the publisher paper (equations 1 and 2, figure 7, table I), see docs/references.md.
    """

    alpha: float = field(default=0.5, metadata={"help": "weight of the old load estimate, 0 to 1"})
    gamma: float = field(default=0.75, metadata={"help": "weight of the old capacity estimate, 0 to 1"})
    beta: float = field(default=1.2, metadata={"help": "T_poll over T_mpt"})
    poll_min_s: float = field(default=0.05, metadata={"help": "shortest polling interval"})
    poll_max_s: float = field(default=0.2, metadata={"help": "longest polling interval, and longest wait T"})
    workers: int = field(default=64, metadata={"help": "most messages in flight"})
    ceiling: Literal["little", "printed"] = field(
        default="little", metadata={"help": "N_max: η·T, or η as the paper prints it"}
    )

    def __post_init__(self) -> None:
        check_between(self, "alpha", 0.0, 1.0, high_open=True)
        check_between(self, "gamma", 0.0, 1.0, high_open=True)
        check_between(self, "beta", 1.0, math.inf, high_open=True)
        check_between(self, "poll_min_s", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "poll_max_s", 0.0, math.inf, low_open=True, high_open=True)
        if self.poll_max_s < self.poll_min_s:
            raise InvalidValue(
                f"BatchAimd.poll_max_s must be at least poll_min_s = {self.poll_min_s:g}, got {self.poll_max_s:g}"
            )
        check_whole(self, "workers", 1)
        check_choice(self, "ceiling", ("little", "printed"))

    def initial(self, command: Value) -> BatchAimdState:
        start = batching(command)
        return BatchAimdState(max(1.0, start.most), clamp(start.poll_s, self.poll_min_s, self.poll_max_s))

    def step(self, state: BatchAimdState, sample: Sample) -> tuple[BatchAimdState, Action]:
        measurement = measurement_of(sample)
        if measurement is None:
            return state, hold_unusable(sample)
        state = replace(state, arrivals=state.arrivals + max(0.0, measurement.arrivals))
        if measurement.transfer_s > 0.0 and measurement.in_flight > 0.0:
            rate = min(measurement.in_flight / measurement.transfer_s, 1e12)
            state = replace(state, capacity=ewma(state.capacity, rate, self.gamma))
        if measurement.short_poll > 0.0 or measurement.handed_s >= 0.0:
            state = self._estimate_load(state, sample.time)
        batch, code, reason = self._batch(state, measurement)
        poll_s = state.poll_s
        if measurement.handed_s >= 0.0:
            poll_s = clamp(self.beta * measurement.handed_s, self.poll_min_s, self.poll_max_s)
        most = self._ceiling(state)
        state = replace(state, batch=clamp(batch, 1.0, most), poll_s=poll_s)
        n = math.floor(state.batch)
        parts = {"N": float(n), "N_max": min(most, 1e12), "load": state.load or 0.0, "eta": state.capacity or 0.0}
        command = Batching(float(n), float(n), poll_s, float(max(self.workers, 1)))
        return state, Action(tuple(command), parts, int(batch > most), reason, code)

    def _estimate_load(self, state: BatchAimdState, time_s: float) -> BatchAimdState:
        if state.since_s is None or time_s <= state.since_s:
            return replace(state, since_s=time_s if math.isfinite(time_s) else None, arrivals=0.0)
        load = ewma(state.load, min(state.arrivals / (time_s - state.since_s), 1e12), self.alpha)
        return replace(state, load=load, since_s=time_s, arrivals=0.0)

    def _batch(self, state: BatchAimdState, measurement: PublisherMeasurement) -> tuple[float, ReasonCode, str]:
        if measurement.short_poll > 0.0:
            return state.batch / 2.0, ReasonCode.LOWERED, "fewer than N messages at the poll: N halved"
        if measurement.handed_s < 0.0:
            return state.batch, ReasonCode.UNCHANGED, "a transfer was confirmed"
        if measurement.handed_s <= state.poll_s:
            return state.batch + 1.0, ReasonCode.RAISED, "handed over within the polling interval: N + 1"
        return state.batch - 1.0, ReasonCode.LOWERED, "the hand-over took longer than the polling interval: N − 1"

    def _ceiling(self, state: BatchAimdState) -> float:
        """N_max; without any estimate yet nothing is known that could limit N."""
        if state.capacity is None:
            return math.inf
        return max(1.0, state.capacity * (1.0 if self.ceiling == "printed" else self.poll_max_s))
