"""Lanes of a pipeline's first tier in the twin: input, batches, a bounded result queue, and a CPU load.

A lane takes events from its input in batches, one after the other. A batch of n events takes T = c + s·n (measured
on Spark: c ≈ 0.22 s) times a random factor, and more while a CPU load takes a share of the lane's core. Its
results come all at once, at its end, into a result queue of limited size, which somebody else empties at a set
rate. What does not fit is dropped: it is for admission to see that this never happens.

How many events a batch takes, and which lane gets which events, is not decided here: whoever runs the lanes passes
that in, so that the very decisions of the pipeline can be put to the test.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flyball.errors import InvalidValue

POLL_S = 0.01
"""A lane without work looks that often, as Spark does."""


@dataclass(frozen=True, slots=True)
class LaneModel:
    """What a lane is like; the defaults were measured on one core."""

    base_s: float = 0.22
    per_event_s: float = 1 / 130_000
    result_bytes: float = 60.3
    """of results for an event that comes in, filtered ones included"""
    noise: float = 0.05
    """standard deviation of the logarithm of a batch's time"""
    queue_bytes: float = 64e6

    def __post_init__(self) -> None:
        for name in ("base_s", "per_event_s", "result_bytes", "noise", "queue_bytes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise InvalidValue(f"{name} must be a number >= 0, got {value!r}")

    def capacity(self, interval_s: float) -> float:
        """Events a second in batches that last an interval each."""
        return (interval_s - self.base_s) / self.per_event_s / interval_s


@dataclass(frozen=True, slots=True)
class Batch:
    began_s: float
    events: int
    seconds: float


@dataclass
class Served:
    """What a lane did, in the order of time."""

    batches: list[Batch] = field(default_factory=list)
    delays_s: list[tuple[float, float, int]] = field(default_factory=list)
    """(when the results came, how old their events were, how many)"""


class LaneTwin:
    """One lane on SimPy's clock. `admit(now, backlog)` says how many events the next batch takes."""

    def __init__(
        self, environment: Any, model: LaneModel, admit: Callable[[float, int], int], rng: np.random.Generator
    ) -> None:
        self.environment, self.model, self.served = environment, model, Served()
        self._admit, self._rng = admit, rng
        self._input: deque[tuple[float, int]] = deque()  # (came at, how many)
        self.backlog = 0
        self.in_flight = 0
        self.events = 0
        """that results were made of so far"""
        self.appended_bytes = 0.0
        self.dropped_bytes = 0.0
        self._queued_bytes, self._drain, self._looked_s = 0.0, math.inf, environment.now
        self._cpu_load = 0.0
        self.then: Callable[[Sequence[tuple[float, int]]], None] = lambda _: None
        """is handed the events of each batch, (born at, how many), when it is done: the next tier"""
        environment.process(self._work())

    def offer(self, events: int, born_s: float | None = None) -> None:
        """Events come to the input, where they may wait; their delay counts from `born_s`, by default from now."""
        if events > 0:
            self._input.append((self.environment.now if born_s is None else born_s, events))
            self.backlog += events

    def set_cpu_load(self, share: float) -> None:
        """Let other programs take that share of the lane's CPU from now on."""
        if not 0.0 <= share < 1.0:
            raise InvalidValue(f"the CPU load of a lane must be >= 0 and < 1, got {share!r}")
        self._cpu_load = share

    def drain(self, bytes_per_s: float) -> None:
        """The result queue is emptied at that rate from now on."""
        self._empty_until_now()
        self._drain = bytes_per_s

    @property
    def queued_bytes(self) -> float:
        self._empty_until_now()
        return self._queued_bytes

    def _empty_until_now(self) -> None:
        now = self.environment.now
        taken = self._queued_bytes if self._drain == math.inf else self._drain * (now - self._looked_s)
        self._queued_bytes, self._looked_s = max(0.0, self._queued_bytes - taken), now

    def _work(self) -> Iterator[Any]:
        env = self.environment
        while True:
            events = min(self.backlog, self._admit(env.now, self.backlog))
            if events <= 0:
                yield env.timeout(POLL_S)
                continue
            taken = self._take(events)
            began_s = env.now
            chance = math.exp(self._rng.normal(0.0, self.model.noise)) if self.model.noise else 1.0
            left = (self.model.base_s + self.model.per_event_s * events) * chance
            while left > 1e-9:  # in steps, because the CPU load may change meanwhile
                step_s = min(POLL_S, left / (1.0 - self._cpu_load))
                yield env.timeout(step_s)
                left -= step_s * (1.0 - self._cpu_load)
            self.in_flight = 0
            self.events += events
            self._put(events * self.model.result_bytes)
            self.served.batches.append(Batch(began_s, events, env.now - began_s))
            self.served.delays_s += [(env.now, env.now - arrival_s, count) for arrival_s, count in taken]
            self.then(taken)

    def _take(self, events: int) -> list[tuple[float, int]]:
        self.backlog -= events
        self.in_flight = events
        taken = []
        while events > 0:
            arrival_s, count = self._input.popleft()
            if count > events:
                self._input.appendleft((arrival_s, count - events))
                count = events
            taken.append((arrival_s, count))
            events -= count
        return taken

    def _put(self, size: float) -> None:
        self._empty_until_now()
        kept = min(size, self.model.queue_bytes - self._queued_bytes)
        self.dropped_bytes += size - kept
        self.appended_bytes += kept
        self._queued_bytes += kept


def percentile_s(delays: Sequence[tuple[float, float, int]], share: float) -> float:
    """The delay that such a share of the events does not exceed.

    >>> percentile_s([(0.0, 1.0, 98), (0.0, 2.0, 1), (0.0, 9.0, 1)], 0.99)
    2.0
    """
    ordered = sorted((delay_s, count) for _, delay_s, count in delays)
    reached = np.cumsum([count for _, count in ordered])
    return ordered[int(np.searchsorted(reached, share * reached[-1] - 1e-9))][0]
