"""C_i and the ratio of consumers to producers, estimated while the cluster works.

The latency of a node (from publishing to its confirm) shows the knee best: up to the capacity it stays near its
least value, beyond it it grows several times. So there are two kinds of useful samples, and both are needed:

idle        latency <= 2 · the least: nobody waits for the node, so the rates of its clients are what they ask for
saturated   latency >= 4 · the least: everybody waits for the node, so its rate is all that it can serve

With the demand d of a client (messages published or delivered a second, from idle samples) and the rate μ of the
node (from saturated ones), C = μ / d clients fit. Where batches differ in size, the latency for each message of a
batch must have grown, too. CPU is no signal: under a quota it shows the quota. A consumer's
rate counts for the time that it was busy; while messages wait, it is busy all the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from flyball.cluster.policy.reasons import Code, Reason
from flyball.control.controllers.common import check_between, check_whole
from flyball.control.filters import Timed, ewma, windowed_min

_LEAST_BUSY = 0.1
"""Part of the time below which a consumer's busy time says nothing about its rate."""


@dataclass(frozen=True, slots=True)
class CapacitySample:
    """One node over the last interval; None: not measured. `busy`: part of the time that consumers were busy."""

    time_s: float
    producers: int
    consumers: int
    published_per_s: float
    delivered_per_s: float
    latency_s: float | None = None
    length: int | None = None
    busy: float | None = None
    message_wait_s: float | None = None
    """The latency of a batch for each of its messages."""


@dataclass(frozen=True, slots=True)
class Average:
    """A mean that forgets, how many samples it has, and when they began."""

    value: float | None = None
    samples: int = 0
    since_s: float = 0.0
    latest_s: float = 0.0

    def add(self, value: float, time_s: float, keep: float) -> Average:
        since_s = self.since_s if self.samples else time_s
        # The first samples count equally: the very first one is no better than the second.
        keep = min(keep, self.samples / (self.samples + 1))
        return Average(ewma(self.value, value, keep), self.samples + 1, since_s, time_s)


@dataclass(frozen=True, slots=True)
class CapacityState:
    latencies: Timed = ()
    """The least latencies of late, the least first."""
    message_waits: Timed = ()
    """Likewise for each message of a batch."""
    publish_per_s: Average = field(default_factory=Average)
    """Demand of one producer."""
    deliver_per_s: Average = field(default_factory=Average)
    """What one busy consumer takes."""
    demand_per_s: Average = field(default_factory=Average)
    """Demand of one client of either kind."""
    node_per_s: Average = field(default_factory=Average)
    """What the saturated node serves: messages published and delivered."""
    most_idle_clients: int = 0
    """The most clients that it served without making them wait."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`value` None: not ready; `text` says how far it is."""

    value: float | None
    text: str


@dataclass(frozen=True, slots=True)
class CapacityEstimator:
    """A configuration; what it learns is in the state.

    >>> estimator, state = CapacityEstimator(needed=3), CapacityState()
    >>> for k in range(7):  # 400 messages a second a client; the node serves 4000
    ...     clients = 6 if k < 4 else 15
    ...     rate, latency_s = (1200.0, 0.001) if k < 4 else (2000.0, 0.02)
    ...     sample = CapacitySample(5.0 * k, clients // 3, clients - clients // 3, rate, rate, latency_s)
    ...     state = estimator.update(state, sample)
    ...     if k in (1, 5):
    ...         print(estimator.capacity(state).text)
    2 of 3 samples at low load, ready in about 5 s; 0 of 3 samples at full load: it serves more than 6 clients
    2 of 3 samples at full load, ready in about 5 s
    >>> estimator.capacity(state).value
    10.0
    """

    needed: int = 12
    keep: float = 0.9
    idle_below: float = 2.0
    saturated_above: float = 4.0
    memory_s: float = 3600.0
    """For how long the least latency counts."""

    def __post_init__(self) -> None:
        check_whole(self, "needed", 1)
        check_between(self, "keep", 0.0, 1.0, high_open=True)
        check_between(self, "idle_below", 1.0, math.inf, high_open=True)
        check_between(self, "saturated_above", self.idle_below, math.inf, high_open=True)
        check_between(self, "memory_s", 0.0, math.inf, low_open=True, high_open=True)

    def update(self, state: CapacityState, sample: CapacitySample) -> CapacityState:
        """Take in one sample of a node; values that are missing or impossible are passed over."""
        if not _is_usable(sample):
            return state
        assert sample.latency_s is not None
        latencies = windowed_min(state.latencies, sample.time_s, sample.latency_s, self.memory_s)
        state = replace(state, latencies=latencies)
        wait_s = sample.message_wait_s
        if wait_s is not None and wait_s > 0.0:
            waits = windowed_min(state.message_waits, sample.time_s, wait_s, self.memory_s)
            state = replace(state, message_waits=waits)
        ratio = _compare(state, sample)
        if ratio <= self.idle_below:
            return self._learn_demand(state, sample)
        if ratio >= self.saturated_above:
            rate = sample.published_per_s + sample.delivered_per_s
            return replace(state, node_per_s=state.node_per_s.add(rate, sample.time_s, self.keep))
        return state

    def is_saturated(self, state: CapacityState, sample: CapacitySample) -> bool:
        """Whether the node's clients waited for it in this sample."""
        return _is_usable(sample) and bool(state.latencies) and _compare(state, sample) >= self.saturated_above

    def _learn_demand(self, state: CapacityState, sample: CapacitySample) -> CapacityState:
        clients = sample.producers + sample.consumers
        rate = sample.published_per_s + sample.delivered_per_s
        if not clients or not rate:
            return state
        publish, deliver = state.publish_per_s, state.deliver_per_s
        if sample.producers and sample.published_per_s:
            publish = publish.add(sample.published_per_s / sample.producers, sample.time_s, self.keep)
        busy = 1.0 if sample.length else sample.busy
        if sample.consumers and sample.delivered_per_s and busy is not None and busy >= _LEAST_BUSY:
            each = sample.delivered_per_s / sample.consumers / min(1.0, busy)
            deliver = deliver.add(each, sample.time_s, self.keep)
        return replace(
            state,
            publish_per_s=publish,
            deliver_per_s=deliver,
            demand_per_s=state.demand_per_s.add(rate / clients, sample.time_s, self.keep),
            most_idle_clients=max(state.most_idle_clients, clients),
        )

    def capacity(self, state: CapacityState, configured: int | None = None) -> Estimate:
        """C_i in clients; a configured value takes precedence."""
        if configured is not None:
            return Estimate(float(configured), "configured")
        missing = [
            self._missing(average, name)
            for average, name in ((state.demand_per_s, "at low load"), (state.node_per_s, "at full load"))
            if average.samples < self.needed
        ]
        demand, rate = state.demand_per_s.value, state.node_per_s.value
        if missing or demand is None or rate is None:
            text = "; ".join(missing)
            if not state.node_per_s.samples and state.most_idle_clients:
                text += f": it serves more than {state.most_idle_clients} clients"
            return Estimate(None, text)
        value = max(1.0, rate / demand)
        return Estimate(value, f"measured: {rate:.4g} messages/s at full load, {demand:.4g} for each client")

    def consumers_per_producer(self, state: CapacityState, configured: float | None = None) -> Estimate:
        """How many consumers take what one producer sends; a configured value takes precedence."""
        if configured is not None:
            return Estimate(configured, "configured")
        missing = [
            self._missing(average, name)
            for average, name in ((state.publish_per_s, "of producers"), (state.deliver_per_s, "of consumers"))
            if average.samples < self.needed
        ]
        publish, deliver = state.publish_per_s.value, state.deliver_per_s.value
        if missing or publish is None or deliver is None:
            return Estimate(None, "; ".join(missing))
        text = f"measured: a producer sends {publish:.4g} messages/s, a busy consumer takes {deliver:.4g}"
        return Estimate(publish / deliver, text)

    def _missing(self, average: Average, name: str) -> str:
        text = f"{average.samples} of {self.needed} samples {name}"
        if average.samples < 2:
            return text
        interval_s = (average.latest_s - average.since_s) / (average.samples - 1)
        return f"{text}, ready in about {(self.needed - average.samples) * interval_s:.0f} s"


def judge_ratio(producers: int, consumers: int, consumers_per_producer: float) -> Reason | None:
    """Why the whole cluster cannot be stable with these clients, wherever they are; None: it can.

    >>> judge_ratio(4, 5, 2.0).text
    '4 producers need 8 consumers, there are 5: the queues grow'
    """
    needed = math.ceil(producers * consumers_per_producer - 1e-9)
    if consumers >= needed:
        return None
    return Reason(
        Code.TOO_FEW_CONSUMERS,
        f"{producers} producers need {needed} consumers, there are {consumers}: the queues grow",
    )


def _compare(state: CapacityState, sample: CapacitySample) -> float:
    """The latency in the least of late.

    A batch takes longer the larger it is, and a message of a small batch longer than one of a large batch: who
    waits for the node waits longer in both respects.
    """
    assert sample.latency_s is not None
    ratio = sample.latency_s / state.latencies[0][1]
    if sample.message_wait_s is None or not state.message_waits:
        return ratio
    return min(ratio, sample.message_wait_s / state.message_waits[0][1])


def _is_usable(sample: CapacitySample) -> bool:
    latency = sample.latency_s
    rates = (sample.time_s, sample.published_per_s, sample.delivered_per_s)
    if latency is None or not all(map(math.isfinite, (latency, *rates))):
        return False
    known = all(each is None or math.isfinite(each) for each in (sample.busy, sample.message_wait_s))
    return known and latency > 0.0 and min(rates[1:]) >= 0.0 and min(sample.producers, sample.consumers) >= 0
