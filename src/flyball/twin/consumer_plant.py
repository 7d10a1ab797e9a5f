"""What a consumer in the twin is made of: handlers, broker, publishers, and what goes wrong with them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from flyball.control.models import Array
from flyball.errors import InvalidValue
from flyball.twin.handler_laws import Constant, Gamma, HandlerLaw
from flyball.twin.workload import Workload

Changing: TypeAlias = float | Callable[[float], float]
"""A number, or a function of the time in seconds."""


@dataclass(frozen=True)
class ConsumerPlant:
    """What the consumer is made of. The defaults are the prefetch paper's: 1 ms of business logic, about 60 msg/s
    per slot.

    `spread` is the standard deviation of a handling time as a part of its mean (gamma distributed), `jitter` that
    of a round trip (a normal distribution cut off at half the mean). `wander` makes handling and round trip
    together slower and faster from second to second, as a shared machine does: a log-normal factor of this
    standard deviation, one value a second. `stalls_per_s` times a second the whole process stands still, for an
    exponentially distributed time of mean `stall_s`: garbage collection, or a machine busy with others.
    `law` is the distribution of handling times, in place of `spread`. `publishers` None: the queue is never
    empty. `replacement_s` is how long a slot stays empty before its next message, though messages wait: the
    embedded broker writes an acknowledgement and a claim for each. The share `failing` of messages fails at each
    attempt; they are tried again as `policy.retry` says, and occupy no slot while they pause. During `outages`
    (begin and end) the broker answers nobody.
    """

    round_trip_s: Changing = 0.0134
    handling_s: Changing = 0.001
    client_s: float = 0.0003
    handlers: int = 16
    spread: float = 0.2
    jitter: float = 0.05
    wander: float = 0.0
    stalls_per_s: float = 0.0
    stall_s: float = 0.3
    publishers: Workload | None = None
    replacement_s: Changing = 0.0
    law: HandlerLaw | None = None
    failing: float = 0.0
    outages: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.handlers < 1:
            raise InvalidValue(f"handlers of a consumer must be >= 1, got {self.handlers}")
        for name in (
            "round_trip_s",
            "handling_s",
            "client_s",
            "spread",
            "jitter",
            "wander",
            "stalls_per_s",
            "stall_s",
            "replacement_s",
        ):
            value = getattr(self, name)
            if not callable(value) and not (math.isfinite(value) and value >= 0):
                raise InvalidValue(f"ConsumerPlant.{name} must be a number >= 0, got {value}")

        if not 0.0 <= self.failing < 1.0:
            raise InvalidValue(f"ConsumerPlant.failing must be >= 0 and < 1, got {self.failing}")
        if any(not begin < end for begin, end in self.outages):
            raise InvalidValue(f"an outage of ConsumerPlant must end after it began, got {self.outages}")

    def reachable_s(self, time_s: float) -> float:
        """The same time, or the end of the outage it falls into."""
        return max((end for begin, end in self.outages if begin <= time_s < end), default=time_s)

    def residence_s(self, time_s: float = 0.0) -> float:
        """Residence time of a message while nothing waits."""
        empty_s = at(self.replacement_s, time_s)
        return at(self.round_trip_s, time_s) + at(self.handling_s, time_s) + self.client_s + empty_s

    def capacity_per_s(self, time_s: float = 0.0) -> float:
        """The rate that no window exceeds."""
        handling = at(self.handling_s, time_s)
        by_handlers = self.handlers / handling if handling > 0 else math.inf
        return min(by_handlers, 1.0 / self.client_s if self.client_s > 0 else math.inf)


class MessageQueue:
    """What was published and not handed out; publications are drawn when somebody looks, not as events."""

    def __init__(self, plant: ConsumerPlant, rng: np.random.Generator) -> None:
        publishers = plant.publishers
        self._plant = plant
        self._endless = publishers is None
        self._arrivals: Iterator[float] = iter(()) if publishers is None else publishers.arrivals(rng)
        self._waiting: deque[float] = deque()
        self.readers = 0
        self._next_s = math.inf if self._endless else next(self._arrivals, math.inf)

    def next_s(self, now_s: float) -> float:
        """When the next message can be there, where there is none now."""
        back_s = self._plant.reachable_s(now_s)
        return back_s if back_s > now_s else self._next_s

    def depth(self, now_s: float) -> float | None:
        self._publish(now_s)
        return None if self._endless else float(len(self._waiting))

    def take(self, now_s: float) -> float | None:
        """When the oldest waiting message was published; None: there is none."""
        if self._plant.outages and self._plant.reachable_s(now_s) > now_s:
            return None
        if self._endless:
            return now_s
        self._publish(now_s)
        return self._waiting.popleft() if self._waiting else None

    def _publish(self, now_s: float) -> None:
        while self._next_s <= now_s:
            self._waiting.append(self._next_s)
            self._next_s = next(self._arrivals, math.inf)


class Draws:
    """Handling times and round trips, drawn in blocks: one number at a time is ten times as slow."""

    def __init__(self, plant: ConsumerPlant, rng: np.random.Generator) -> None:
        self._plant = plant
        handling, trip, wander, stalls, failures = rng.spawn(5)
        law = plant.law or (Gamma(plant.spread) if plant.spread > 0 else Constant())
        self._handling = _blocks(lambda n: law.draw(handling, n))
        self._failures = _blocks(lambda n: failures.random(n))
        self._trip = _blocks(lambda n: np.maximum(0.5, trip.normal(1.0, plant.jitter, n)))
        factors = _blocks(lambda n: np.exp(wander.normal(0.0, plant.wander, n)))
        self._wander = [next(factors)]
        self._factors = factors
        self._stalls: list[tuple[float, float]] = []  # in order: begin and end
        self._next_stall = self._stalling(stalls)

    def _stalling(self, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        time_s = 0.0
        while self._plant.stalls_per_s > 0:
            time_s += rng.exponential(1.0 / self._plant.stalls_per_s)
            length_s = rng.exponential(self._plant.stall_s)
            yield time_s, time_s + length_s
            time_s += length_s
        yield math.inf, math.inf

    def awake_s(self, time_s: float) -> float:
        """The same time, or the end of the stall it falls into."""
        stalls = self._stalls
        while not stalls or stalls[-1][0] <= time_s:
            stalls.append(next(self._next_stall))
        for begin, end in reversed(stalls):
            if begin <= time_s:
                return max(time_s, end)
        return time_s

    def fails(self) -> bool:
        return self._plant.failing > 0.0 and next(self._failures) < self._plant.failing

    def handling_s(self, time_s: float) -> float:
        return at(self._plant.handling_s, time_s) * next(self._handling) * self._factor(time_s)

    def round_trip_s(self, time_s: float) -> float:
        return at(self._plant.round_trip_s, time_s) * next(self._trip) * self._factor(time_s)

    def _factor(self, time_s: float) -> float:
        second = int(time_s)
        while len(self._wander) <= second:
            self._wander.append(next(self._factors))
        return self._wander[second]


def _blocks(draw: Callable[[int], Array]) -> Iterator[float]:
    while True:
        yield from draw(4096).tolist()


def at(value: Changing, time_s: float) -> float:
    return value(time_s) if callable(value) else value
