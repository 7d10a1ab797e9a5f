"""The publisher paper's publisher in the twin: the same policy and controllers as the live one, in virtual time.

A request comes to the main receive thread (MRT), waits in a finite buffer (full: dropped and counted), is handed
to a worker, which processes it and writes it to the store. The main publish thread (MPT) does what
`flyball.publisher.policy` decides: it reads a batch from the store and gives each message to a worker, which
brings it to the broker and is free again only when the ACK is back. Workers are one pool in which receive work
goes first (without interrupting anybody); the store serves one at a time, writes before reads.

The paper gives α, β, γ, the limits of T_poll and the round trip of 140 ms; the rest is left open. What we chose:

* 80 workers, of which `batch-aimd` and `auto` use at most 64 for transfers: a pool that transfers could fill would
  leave none for requests, whatever the priority. The untuned publisher has no such bound.
* A buffer of 100 requests; 1 ms to process a request; 1 ms to write one; 2 ms + 0.2 ms a message to read a batch.
* The broker takes in 2,000 messages a second and holds 100,000; the subscriber reads 1,000 a second between
  vacations of 0.1 s. The paper lets it read 25 a second, which is less than its loads of 35 and 55 a second: no
  queue of any size would do. So the loads are run with a subscriber that keeps up (the paper asks for "no
  broker-side congestion" there), and 25 a second is used for congestion, with a queue of 100 (`CONGESTED`).

The policy gets confirms message by message, as the paper's workers do. The response time of a message
counts from its request to its ACK.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flyball.control.controllers.publishing.auto import Auto
from flyball.control.controllers.publishing.batch_aimd import BatchAimd
from flyball.control.controllers.publishing.static import Static
from flyball.control.models import Array
from flyball.control.step import Controller
from flyball.errors import InvalidValue, require
from flyball.publisher.policy import Accepted, Batch, Confirmed, Event, Policy, Timer, decide, start
from flyball.twin.pubsub import Broker, FarSide
from flyball.twin.workload import Workload

_FIRST, _SECOND = 0, 1  # SimPy serves the smaller number first
TRANSFERS = 64
"""Workers that `batch-aimd` and `auto` use for transfers at most; the rest is always there for requests."""
CONGESTED = FarSide(queue=100, read_rate=25.0, vacation_s=4.0)


@dataclass(frozen=True, slots=True)
class NearSide:
    """The publisher's own parts."""

    workers: int = 80
    buffer: int = 100
    receive_s: float = 0.001
    write_s: float = 0.001
    read_s: float = 0.002
    read_each_s: float = 0.0002
    receive_first: bool = True
    """False: requests and transfers share the workers in order of arrival."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.buffer < 1:
            raise InvalidValue(
                f"workers and buffer of a publisher must be >= 1, got {self.workers} and {self.buffer}"
            )


def tuned(name: str) -> Controller[Any]:
    """The controller `auto` or `batch-aimd` as it runs on the default pool."""
    return Auto(max_window=TRANSFERS) if name == "auto" else BatchAimd(workers=TRANSFERS)


def untuned(batch: int, poll_s: float = 0.05) -> Controller[Any]:
    """The paper's publisher with auto-tuning off."""
    return Static(batch=batch, poll_s=poll_s)


class TwinPublisher:
    """One publisher on SimPy's clock."""

    def __init__(
        self, policy: Policy, broker: Broker, near: NearSide | None = None, *, batch: int = 1, backlog: int = 0
    ) -> None:
        simpy: Any = require("simpy", "lab")
        env = self._env = broker.environment
        self._near = near = near or NearSide()
        self._link = broker.link()
        self._workers = simpy.PriorityResource(env, capacity=near.workers)
        self._disk = simpy.PriorityResource(env, capacity=1)
        self._to_read = simpy.Store(env)
        self._buffered = 0
        self._stored: deque[float] = deque([env.now] * backlog)
        self._policy = policy
        self._state = start(policy, env.now, batch=batch, pending=backlog)
        self._timer_s = math.inf
        self.dropped = 0
        self._unanswered: Counter[float] = Counter({env.now: backlog} if backlog else {})
        self.arrival_s: list[float] = []
        self.response_s: list[float] = []
        self.batch_sizes: list[tuple[float, int]] = []
        """(when, how many) of every batch that left."""
        self.wanted: list[tuple[float, float]] = [(env.now, self._state.command.most)]
        """(since when, N)."""
        env.process(self._publish())
        if backlog:
            self._happened(Timer(env.now))

    def feed(self, workload: Workload, rng: np.random.Generator, until_s: float = math.inf) -> None:
        """Let requests come from now on."""

        def requests() -> Iterator[Any]:
            origin_s = self._env.now
            for at_s in workload.arrivals(rng):
                if at_s >= until_s:
                    return
                yield self._env.timeout(max(0.0, origin_s + at_s - self._env.now))
                self._request()

        self._env.process(requests())

    @property
    def unfinished_s(self) -> list[float]:
        """When each request came that was accepted and has no ACK yet."""
        return list(self._unanswered.elements())

    def _request(self) -> None:
        if self._buffered >= self._near.buffer:
            self.dropped += 1
            return
        self._buffered += 1
        self._unanswered[self._env.now] += 1
        self._env.process(self._receive(self._env.now))

    def _receive(self, arrival_s: float) -> Iterator[Any]:
        near, env = self._near, self._env
        with self._workers.request(priority=_FIRST if near.receive_first else _SECOND) as worker:
            yield worker
            self._buffered -= 1
            yield env.timeout(near.receive_s)
            with self._disk.request(priority=_FIRST) as turn:
                yield turn
                yield env.timeout(near.write_s)
        self._stored.append(arrival_s)
        self._happened(Accepted(env.now, 1))

    def _publish(self) -> Generator[Any, Any, None]:
        """The main publish thread: reads what was decided, and waits for a worker for every message."""
        near, env = self._near, self._env
        while True:
            batch = yield self._to_read.get()
            with self._disk.request(priority=_SECOND) as turn:
                yield turn
                yield env.timeout(near.read_s + batch.count * near.read_each_s)
            for arrival_s in [self._stored.popleft() for _ in range(batch.count)]:
                worker = self._workers.request(priority=_SECOND)
                yield worker
                env.process(self._transfer(worker, arrival_s, batch))

    def _transfer(self, worker: Any, arrival_s: float, batch: Batch) -> Iterator[Any]:
        yield from self._link.transfer(arrival_s)
        self._workers.release(worker)
        self._unanswered[arrival_s] -= 1
        if not self._unanswered[arrival_s]:
            del self._unanswered[arrival_s]
        self.arrival_s.append(arrival_s)
        self.response_s.append(self._env.now - arrival_s)
        self._happened(Confirmed(self._env.now, replace(batch, count=1)))

    def _happened(self, event: Event) -> None:
        self._state, decisions = decide(self._policy, self._state, event)
        for batch in decisions.send:
            self.batch_sizes.append((self._env.now, batch.count))
            self._to_read.put(batch)
        if self._state.command.most != self.wanted[-1][1]:
            self.wanted.append((self._env.now, self._state.command.most))
        if decisions.wake_s is not None and decisions.wake_s < self._timer_s:
            due_s = self._timer_s = decisions.wake_s
            alarm = self._env.timeout(max(0.0, due_s - self._env.now))
            alarm.callbacks.append(lambda _: self._ring(due_s))

    def _ring(self, due_s: float) -> None:
        if due_s != self._timer_s:
            return  # an earlier one was set meanwhile
        self._timer_s = math.inf
        # A rounding may show a time just before it is due, and the answer would be to come back at once, for ever.
        self._happened(Timer(max(self._env.now, due_s) + 1e-9))


@dataclass(frozen=True)
class PublisherRun:
    """What happened, in order of completion. Latencies are response times, from request to ACK."""

    arrival_s: Array
    response_s: Array
    dropped: int
    waiting: int
    """Accepted and without an ACK at the end."""
    wanted: tuple[tuple[float, float], ...]
    batch_sizes: tuple[tuple[float, int], ...]
    end_s: float
    skip_s: float
    read_after_s: Array = field(default_factory=lambda: np.array([]))
    """Ages of messages when the subscriber read them."""

    @property
    def latencies_s(self) -> Array:
        """Response times of requests after the first `skip_s`; without an answer: what they waited so far."""
        return self.response_s[self.arrival_s >= self.skip_s]

    @property
    def mean_s(self) -> float:
        return float(self.latencies_s.mean())

    def quantile_s(self, share: float) -> float:
        return float(np.quantile(self.latencies_s, share))

    @property
    def mean_wanted(self) -> float:
        """N, averaged over time after the first `skip_s`."""
        times_s = np.array([max(since_s, self.skip_s) for since_s, _ in self.wanted] + [self.end_s])
        sizes = np.array([size for _, size in self.wanted])
        return float(np.sum(np.diff(times_s) * sizes) / (self.end_s - self.skip_s))

    @property
    def mean_batch(self) -> float:
        """Messages a batch, averaged over batches after the first `skip_s`."""
        return float(np.mean([count for when_s, count in self.batch_sizes if when_s >= self.skip_s] or [0]))


def run_publisher(
    controller: Controller[Any],
    workload: Workload,
    *,
    seed: int,
    duration_s: float,
    batch: int = 1,
    skip_s: float = 0.0,
    near: NearSide | None = None,
    far: FarSide | None = None,
) -> PublisherRun:
    """One publisher under one workload: the same arguments give the same run.

    >>> from flyball.twin.workload import Poisson
    >>> run = run_publisher(untuned(batch=1), Poisson(1.75), seed=1, duration_s=100.0)
    >>> 0.14 < run.mean_s < 0.14 + 0.05 + 0.02, run.dropped
    (True, 0)
    """
    if not 0.0 <= skip_s < duration_s:
        raise InvalidValue(f"skip_s must be >= 0 and less than the duration of {duration_s:g} s, got {skip_s!r}")
    env: Any = require("simpy", "lab").Environment()
    for_arrivals, for_broker = np.random.default_rng(seed).spawn(2)
    broker = Broker(env, far or FarSide(), for_broker)
    publisher = TwinPublisher(Policy(controller), broker, near, batch=batch)
    publisher.feed(workload, for_arrivals)
    env.run(until=duration_s)
    unfinished_s = publisher.unfinished_s
    return PublisherRun(
        arrival_s=np.array(publisher.arrival_s + unfinished_s),
        response_s=np.array(publisher.response_s + [duration_s - arrival_s for arrival_s in unfinished_s]),
        dropped=publisher.dropped,
        waiting=len(unfinished_s),
        wanted=tuple(publisher.wanted),
        batch_sizes=tuple(publisher.batch_sizes),
        end_s=duration_s,
        skip_s=skip_s,
        read_after_s=np.array(broker.read_after_s),
    )


def run_sharing(
    controller: Callable[[], Controller[Any]],
    *,
    publishers: int,
    join_every_s: float,
    after_s: float,
    far: FarSide,
    seed: int = 1,
    bin_s: float = 1.0,
) -> Array:
    """Publishers with endless work join one broker in turn: confirmed messages of each in every `bin_s`.

    Rows are publishers, columns bins of time from 0 to `after_s` after the last joined.
    """
    env: Any = require("simpy", "lab").Environment()
    broker = Broker(env, far, np.random.default_rng(seed))
    end_s = (publishers - 1) * join_every_s + after_s
    capacity = math.ceil((end_s + 1.0) / max(far.intake_s, 1e-4))
    near = NearSide(workers=100_000, read_s=0.0, read_each_s=0.0)  # the broker alone is the bottleneck
    joined: list[TwinPublisher] = []

    def join() -> Iterator[Any]:
        for _ in range(publishers):
            joined.append(TwinPublisher(Policy(controller()), broker, near, backlog=capacity))
            yield env.timeout(join_every_s)

    env.process(join())
    env.run(until=end_s)
    bins = np.arange(0.0, end_s + bin_s / 2, bin_s)
    done = [np.array(one.arrival_s) + np.array(one.response_s) for one in joined]
    return np.array([np.histogram(times, bins)[0] for times in done])


def jain(rates: Sequence[float] | Array) -> float:
    """Jain's index of fairness (Σx)² / (n·Σx²): 1 when all get the same, 1/n when one gets everything.

    >>> jain([1.0, 1.0]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    values = np.asarray(rates, dtype=float)
    return float(values.sum() ** 2 / (values.size * np.sum(values**2))) if values.any() else 1.0
