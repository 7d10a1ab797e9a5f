"""Seeded arrivals: when do messages come?

A workload is a frozen description; `arrivals(rng)` turns it into an endless (or, for a trace, finite) iterator
of arrival times in seconds, starting at 0 and never going back. The random generator is passed in, so one seed
gives one run. Every distribution below draws *gaps* between arrivals and adds them up.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from flyball.errors import InvalidValue, require


class Workload(Protocol):
    def arrivals(self, rng: np.random.Generator) -> Iterator[float]: ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals at `rate` a second: exponential gaps of mean 1/rate.

    >>> times = Poisson(rate=10.0).arrivals(np.random.default_rng(1))
    >>> [round(next(times), 3) for _ in range(3)]
    [0.107, 0.138, 0.676]
    """

    rate: float

    def __post_init__(self) -> None:
        _positive("the rate", self.rate, "arrivals a second")

    def arrivals(self, rng: np.random.Generator) -> Iterator[float]:
        time = 0.0
        while True:
            time += rng.exponential(1.0 / self.rate)
            yield time


@dataclass(frozen=True, slots=True)
class Normal:
    """Gaps drawn from a normal distribution, cut off at 0: a periodic source with jitter.

    Where `std_s` is far below `mean_s` (prefetch paper: 1 ms and 10 ms) nothing is ever cut off. `sources` of them
    run side by side, each started at a random point of its first gap, so that they do not march in step.
    """

    mean_s: float
    std_s: float
    sources: int = 1

    def __post_init__(self) -> None:
        _positive("the mean gap", self.mean_s, "seconds")
        if not (math.isfinite(self.std_s) and self.std_s >= 0):
            raise InvalidValue(f"std_s must be a number of seconds >= 0, got {self.std_s}")
        if self.sources < 1:
            raise InvalidValue(f"a workload needs at least one source, got {self.sources}")

    def arrivals(self, rng: np.random.Generator) -> Iterator[float]:
        return heapq.merge(*(self._one(child) for child in rng.spawn(self.sources)))

    def _one(self, rng: np.random.Generator) -> Iterator[float]:
        time = rng.uniform(0.0, self.mean_s)
        while True:
            yield time
            time += max(0.0, rng.normal(self.mean_s, self.std_s))


@dataclass(frozen=True, slots=True)
class Steps:
    """Poisson arrivals whose rate changes at given times; the last rate stays.

    `profile` lists (start_s, rate) with rising starts, the first at 0. An exponential gap has no memory, so
    a gap that crosses a change is simply drawn again, from the change on, at the new rate.
    """

    profile: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.profile]
        if not starts or starts[0] != 0.0 or any(b <= a for a, b in pairwise(starts)):
            raise InvalidValue(f"the times of a profile must start at 0 s and rise, got {starts}")
        if not all(math.isfinite(rate) and rate >= 0 for _, rate in self.profile):
            raise InvalidValue(f"rates must be arrivals a second >= 0, got {[rate for _, rate in self.profile]}")

    def arrivals(self, rng: np.random.Generator) -> Iterator[float]:
        ends = [start for start, _ in self.profile[1:]] + [math.inf]
        for (time, rate), end in zip(self.profile, ends, strict=True):
            while rate > 0:
                time += rng.exponential(1.0 / rate)
                if time >= end:
                    break
                yield time


@dataclass(frozen=True, slots=True)
class Bursts:
    """`size` arrivals at once every `every_s`, spread evenly over `spread_s`; the first burst at `first_s`.

    A survey telescope's night (publisher paper): 1,000 alerts every 45 s.

    >>> times = Bursts(size=2, every_s=45.0, spread_s=1.0).arrivals(np.random.default_rng(1))
    >>> [next(times) for _ in range(4)]
    [0.0, 0.5, 45.0, 45.5]
    """

    size: int
    every_s: float
    spread_s: float = 0.0
    first_s: float = 0.0

    def __post_init__(self) -> None:
        _positive("the time between bursts", self.every_s, "seconds")
        if self.size < 1:
            raise InvalidValue(f"size of a burst must be at least one arrival, got {self.size}")
        if not 0 <= self.spread_s < self.every_s:
            raise InvalidValue(
                f"a burst is spread over 0 s to less than the {self.every_s:g} s between bursts, "
                f"got {self.spread_s}"
            )

    def arrivals(self, rng: np.random.Generator) -> Iterator[float]:
        del rng  # nothing random here; the protocol is the same for all
        burst = 0
        while True:
            start = self.first_s + burst * self.every_s
            yield from (start + i * self.spread_s / self.size for i in range(self.size))
            burst += 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded arrival times, replayed `speed` times as fast; the first arrival becomes time 0.

    >>> list(Trace((100.0, 150.0, 250.0), speed=50).arrivals(np.random.default_rng(1)))
    [0.0, 1.0, 3.0]
    """

    times_s: tuple[float, ...]
    speed: float = 1.0

    def __post_init__(self) -> None:
        _positive("the speed of a replay", self.speed, "times the recorded one")
        if not self.times_s:
            raise InvalidValue("a trace needs at least one recorded time, got none")
        for earlier, later in pairwise(self.times_s):
            if not later >= earlier:
                raise InvalidValue(f"recorded times must not decrease, got {later} s after {earlier} s")

    def arrivals(self, rng: np.random.Generator) -> Iterator[float]:
        del rng  # a replay has nothing random
        return ((time - self.times_s[0]) / self.speed for time in self.times_s)


@dataclass(frozen=True, slots=True)
class During:
    """A workload that comes at `start_s` and goes at `stop_s`: its own time begins when it comes.

    >>> list(During(Bursts(1, every_s=1.0), start_s=10.0, stop_s=12.5).arrivals(np.random.default_rng(1)))
    [10.0, 11.0, 12.0]
    """

    workload: Workload
    start_s: float
    stop_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0.0 <= self.start_s < self.stop_s:
            raise InvalidValue(
                f"stop_s of a workload must be later than start_s >= 0, got {self.start_s} and {self.stop_s}"
            )

    def arrivals(self, rng: np.random.Generator) -> Iterator[float]:
        shifted = (self.start_s + time for time in self.workload.arrivals(rng))
        return itertools.takewhile(lambda time: time < self.stop_s, shifted)


@dataclass(frozen=True, slots=True)
class Together:
    """Several workloads at once, each with its own stream of random numbers."""

    workloads: tuple[Workload, ...]

    def arrivals(self, rng: np.random.Generator) -> Iterator[float]:
        streams = zip(self.workloads, rng.spawn(len(self.workloads)), strict=True)
        return heapq.merge(*(workload.arrivals(child) for workload, child in streams))


def counts(workload: Workload, rng: np.random.Generator, *, period_s: float, periods: int) -> Sequence[int]:
    """How many arrivals fall into each of the first `periods` periods: a rate sensor's raw material.

    >>> counts(Bursts(3, every_s=2.0), np.random.default_rng(1), period_s=1.0, periods=4)
    [3, 0, 3, 0]
    """
    found = [0] * periods
    for time in workload.arrivals(rng):
        period = int(time // period_s)
        if period >= periods:
            break
        found[period] += 1
    return found


def feed(environment: Any, workload: Workload, rng: np.random.Generator, store: Any) -> Any:
    """Put every arrival's time into a SimPy store when it comes; returns the SimPy process."""
    require("simpy", "lab")

    def process() -> Iterator[Any]:
        for time in workload.arrivals(rng):
            yield environment.timeout(max(0.0, time - environment.now))
            yield store.put(environment.now)

    return environment.process(process())


def _positive(what: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InvalidValue(f"{what} must be a number of {unit} > 0, got {value}")
