"""The pipeline's own decisions on lanes of the twin: admission, shares and balancing.

Time is virtual, so an hour takes a moment. What the pipeline reads from logs of a broker is read here from the
twin's lanes; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flyball.control.record import LoopRecord
from flyball.errors import require
from flyball.pipeline import policy
from flyball.pipeline.logs.levels import Level
from flyball.pipeline.policy import Balancer, FlowControl, LaneDelay
from flyball.pipeline.source.admission import Admission
from flyball.twin.lanes import LaneModel, LaneTwin, percentile_s

TICK_S = 0.05
_MOST_EVENTS = 10_000_000
_STATIC_LIMIT = 200_000
_DELAY_SAMPLE_S = 0.2  # as in the splitter

Weigher = Callable[[float, Sequence[float | None], Sequence[float], float], Sequence[float]]
"""(time, predicted delays, shares now, load) → the shares from now on"""


class TwinLevels:
    """The free-space sensor on lanes of the twin."""

    def __init__(self, lanes: Sequence[LaneTwin]) -> None:
        self._lanes = lanes

    def read(self, lanes: Sequence[int]) -> list[Level]:
        return [_level(self._lanes[lane]) for lane in lanes]


def _level(lane: LaneTwin) -> Level:
    batches = lane.served.batches
    return Level(
        appended_bytes=round(lane.appended_bytes),
        queued_bytes=round(lane.queued_bytes),
        events=lane.events,
        batch_events=batches[-1].events if batches else 0,
        batch_s=batches[-1].seconds if batches else None,
    )


@dataclass
class Trace:
    """Time series of the lanes."""

    times_s: list[float] = field(default_factory=list)
    free_bytes: list[list[float]] = field(default_factory=list)
    dropped_bytes: list[list[float]] = field(default_factory=list)
    backlog: list[list[int]] = field(default_factory=list)
    weights: list[tuple[float, ...]] = field(default_factory=list)


class LaneSimulation:
    """Lanes that get events from a splitter at a rate. `flow` None: no admission control, a batch takes all.

    `weigh` sets the lanes' shares each second from their predicted delays (policy.LaneDelay). None: round robin.
    `skip_laggards`: a lane that is far behind gets no events, as in the splitter. `late`: shares are in
    force one interval after they were decided, as in the event-processing paper.
    """

    def __init__(
        self,
        models: Sequence[LaneModel],
        seed: int,
        *,
        flow: FlowControl | None = None,
        weigh: Weigher | None = None,
        balance_every_s: float = 1.0,
        skip_laggards: bool = False,
        late: bool = False,
        environment: Any = None,
    ) -> None:
        self.environment: Any = environment or require("simpy", "lab").Environment()
        self.trace = Trace()
        self.records: list[LoopRecord] = []
        self.rate = 0.0
        """events a second that come in"""
        self._weigh, self._balance_every_s, self._late = weigh, balance_every_s, late
        self._skip_laggards = skip_laggards
        self.weights: tuple[float, ...] = policy.equal_weights(len(models))
        rngs = np.random.default_rng(seed).spawn(len(models))
        self.lanes: list[LaneTwin] = []
        levels = TwinLevels(self.lanes)
        for number, (model, rng) in enumerate(zip(models, rngs, strict=True)):
            admit = _admit_all if flow is None else _admission(number, flow, levels, self.records.append)
            self.lanes.append(LaneTwin(self.environment, model, admit, rng))
        self._delays = [LaneDelay() for _ in models]
        self._batches_read = [0] * len(models)
        self.environment.process(self._feed())
        self.environment.process(self._measure_delays())
        self.environment.process(self._record())

    def run(self, seconds: float) -> None:
        """Advance the virtual time, also for everything else in the same environment."""
        self.environment.run(until=self.environment.now + seconds)

    def _feed(self) -> Any:
        carry: Sequence[float] = (0.0,) * len(self.lanes)
        due, next_balance_s, decided = 0.0, self._balance_every_s, self.weights
        while True:
            due += self.rate * TICK_S
            events = int(due)
            due -= events
            shares = self.weights
            if self._skip_laggards:
                shares = policy.without_laggards(shares, [delay.now_s for delay in self._delays])
            counts, carry = policy.split(events, shares, carry)
            for lane, count in zip(self.lanes, counts, strict=True):
                lane.offer(count)
            if self._weigh is not None and self.environment.now >= next_balance_s:
                next_balance_s += self._balance_every_s
                predicted_s = [delay.predicted_s for delay in self._delays]
                load = max(delay.times.load for delay in self._delays)
                self._delays = [delay.read() for delay in self._delays]
                before = decided
                decided = tuple(self._weigh(self.environment.now, predicted_s, decided, load))
                self.weights = before if self._late else decided
            yield self.environment.timeout(TICK_S)

    def _measure_delays(self) -> Any:
        while True:
            yield self.environment.timeout(_DELAY_SAMPLE_S)
            for number, lane in enumerate(self.lanes):
                delay = self._delays[number]
                for batch in lane.served.batches[self._batches_read[number] :]:
                    delay = delay.with_batch(self.environment.now, batch.events, batch.seconds)
                self._batches_read[number] = len(lane.served.batches)
                self._delays[number] = delay.with_backlog(self.environment.now, lane.backlog + lane.in_flight)

    def _record(self) -> Any:
        while True:
            self.trace.times_s.append(self.environment.now)
            self.trace.free_bytes.append([lane.model.queue_bytes - lane.queued_bytes for lane in self.lanes])
            self.trace.dropped_bytes.append([lane.dropped_bytes for lane in self.lanes])
            self.trace.backlog.append([lane.backlog for lane in self.lanes])
            self.trace.weights.append(self.weights)
            yield self.environment.timeout(0.5)


def _admit_all(now_s: float, backlog: int) -> int:
    """A static limit, as plain Structured Streaming has it."""
    del now_s
    return min(backlog, _STATIC_LIMIT)


def _admission(
    number: int, flow: FlowControl, levels: TwinLevels, on_record: Callable[[LoopRecord], None]
) -> Callable[[float, int], int]:
    admission = Admission((number,), _MOST_EVENTS, flow.interval_s, levels, flow, on_record=on_record)

    def admit(now_s: float, backlog: int) -> int:
        events = admission.decide(now_s, backlog).events
        if events:
            admission.begin(now_s, [events])
        return events

    return admit


def lane_balancing(lanes: int) -> Weigher:
    """The pipeline's own balancing."""
    balancer = Balancer(lanes)
    state = [balancer.initial()]

    def weigh(
        time_s: float, delays_s: Sequence[float | None], weights: Sequence[float], load: float
    ) -> Sequence[float]:
        del weights  # the balancer has its own record of them
        state[0] = balancer.step(state[0], time_s, 1.0, delays_s, load)
        return state[0].weights

    return weigh


def p99_s(simulation: LaneSimulation, since_s: float, until_s: float) -> float:
    """99th percentile of the delay of all events whose results came in that span."""
    delays = [one for lane in simulation.lanes for one in lane.served.delays_s if since_s <= one[0] < until_s]
    return percentile_s(delays, 0.99)


def free_space_range(records: Sequence[LoopRecord], since_s: float, until_s: float) -> tuple[float, float]:
    """Smallest and largest free space that the loop measured in a span of time, as parts of the reference."""
    ratios = [
        record.measurement / record.setpoint
        for record in records
        if since_s <= record.time < until_s
        and isinstance(record.measurement, float)
        and isinstance(record.setpoint, float)
    ]
    return min(ratios), max(ratios)


def settled_after(records: Sequence[LoopRecord], changed_s: float, until_s: float, band: float) -> int | None:
    """Count the intervals after a change until the free space stays within the band; None: never."""
    span = [record for record in records if changed_s <= record.time < until_s]
    outside = [
        number
        for number, record in enumerate(span, start=1)
        if isinstance(record.measurement, float)
        and isinstance(record.setpoint, float)
        and abs(record.measurement - record.setpoint) > band * record.setpoint
    ]
    last = max(outside, default=0)
    return None if last == len(span) else last
