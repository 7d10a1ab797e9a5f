"""A consumer on a RabbitMQ-like queue, message by message; `consumer_loop` regulates it.

A message occupies a slot of the window when it is handed out, and frees it when the broker has learned of its
acknowledgement and can have replaced it:

    residence = wait for the client + client + wait for a handler + handling + round trip

so that, while messages are waiting, rate = window / residence (Little's law): linear with the gain 1/residence.
A broker that is asked for each message leaves a slot empty until the answer arrives, for `replacement_s`; that
counts as part of the residence time, in the live sensor as here.
The client takes its messages one after the other, `handlers` of them are handled at once; above that capacity a
wider window only makes residence times longer, and the rate saturates.

The stages are first come, first served, so the end of a message is known when it is handed out (start = the later
of its arrival and the first free server). One event a message is enough: a simulated minute takes about a second.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from flyball.consumer.policy import (
    ConsumerMeasurement,
    DepthReading,
    estimate_publish_rate,
    median_residence,
)
from flyball.consumer.policy.pacing import Actuation, TokenBucket, count_tokens, take_token
from flyball.control.models import Array
from flyball.errors import InvalidValue, require
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
    `publishers` None: the queue is never empty. `replacement_s` is how long a slot stays empty before its next
    message, though messages wait: the embedded broker writes an acknowledgement and a claim for each.
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

    def residence_s(self, time_s: float = 0.0) -> float:
        """Residence time of a message while nothing waits."""
        empty_s = _at(self.replacement_s, time_s)
        return _at(self.round_trip_s, time_s) + _at(self.handling_s, time_s) + self.client_s + empty_s

    def capacity_per_s(self, time_s: float = 0.0) -> float:
        """The rate that no window exceeds."""
        handling = _at(self.handling_s, time_s)
        by_handlers = self.handlers / handling if handling > 0 else math.inf
        return min(by_handlers, 1.0 / self.client_s if self.client_s > 0 else math.inf)


class RunningConsumer:
    """The plant in virtual time: an actuator (`set_window`) and a sensor (`look`)."""

    def __init__(self, plant: ConsumerPlant, environment: Any, rng: np.random.Generator) -> None:
        self.plant = plant
        self._environment = environment
        self._queue = _Queue(plant.publishers, rng.spawn(1)[0])
        self._random = _Draws(plant, rng)
        self._window = 0
        self._occupied = 0
        self._replacing = 0  # empty slots for which the broker was asked
        self._empty_s = 0.0  # how long one was empty, last
        self._client_free_s = 0.0
        self._handler_free_s = [0.0] * plant.handlers
        self._alarm_s = math.inf
        self._actuation, self._bucket = Actuation(0.0), TokenBucket()
        self._awaits_token = False
        # since the last measurement
        self._since_s = float(environment.now)
        self._changed_s = self._since_s
        self._full_s = 0.0
        self._begins_s: deque[float] = (
            deque()
        )  # when handlers begin; in order, for they are first come, first served
        self._residences: list[float] = []
        self._tick_means_s: list[float] = []
        self._handlings: list[float] = []
        self._latencies: list[float] = []
        self._handed = self._done = 0
        self._last_depth: DepthReading | None = None
        self.most_occupied = 0

    @property
    def window(self) -> int:
        return self._window

    def set_window(self, window: int) -> None:
        """Called at every tick of the dither; a tick's messages count together, as in the live sensor."""
        self._account()
        self._end_tick()
        self._window = window
        self._hand_out()

    def set_pace(self, actuation: Actuation) -> None:
        """Hand messages out at the pace of `actuation` from now on; its window is left to `set_window`."""
        self._actuation = actuation

    def measure(self) -> ConsumerMeasurement:
        """The measurement since the last one; the residence time is the median of the ticks' means."""
        self._account()
        self._end_tick()
        now = float(self._environment.now)
        dt = now - self._since_s
        handed = 0
        while self._begins_s and self._begins_s[0] <= now:
            self._begins_s.popleft()
            handed += 1
        self._handed += handed
        depth = self._queue.depth(now)
        before, self._last_depth = (
            self._last_depth,
            None if depth is None else DepthReading(now, depth, self._handed),
        )
        measurement = ConsumerMeasurement(
            time_s=now,
            dt_s=dt,
            rate_per_s=handed / dt if dt > 0 else None,
            residence_s=median_residence(self._tick_means_s),
            used=self._full_s / dt if dt > 0 else 0.0,
            depth=depth,
            latency_p95_s=float(np.quantile(self._latencies, 0.95)) if self._latencies else None,
            handling_p95_s=float(np.quantile(self._handlings, 0.95)) if self._handlings else None,
            done_per_s=self._done / dt if dt > 0 else None,
            publish_per_s=estimate_publish_rate(before, self._last_depth) if before and self._last_depth else None,
        )
        self._done = 0
        self._since_s, self._full_s = now, 0.0
        self._tick_means_s, self._handlings, self._latencies = [], [], []
        return measurement

    def _end_tick(self) -> None:
        if self._residences:
            self._tick_means_s.append(sum(self._residences) / len(self._residences) + self._empty_s)
            self._residences = []

    def _account(self) -> None:
        now = float(self._environment.now)
        if self._awaits_token or self._occupied + self._replacing >= self._window:
            self._full_s += now - self._changed_s
        self._changed_s = now

    def _hand_out(self) -> None:
        now = float(self._environment.now)
        _, pace, burst_s = self._actuation
        self._awaits_token = False
        while self._occupied + self._replacing < self._window:
            if pace is not None and not count_tokens(self._bucket, now, pace, burst_s):
                self._awaits_token = True
                self._wake_at(now + take_token(self._bucket, now, pace, burst_s)[1])
                return
            published_s = self._queue.take(now)
            if published_s is None:
                self._wake_at(self._queue.next_s)
                return
            if pace is not None:
                self._bucket, _ = take_token(self._bucket, now, pace, burst_s)
            self._occupied += 1
            self.most_occupied = max(self.most_occupied, self._occupied)
            self._client_free_s = max(self._client_free_s, now) + self.plant.client_s
            begins = self._random.awake_s(max(self._client_free_s, heapq.heappop(self._handler_free_s)))
            self._begins_s.append(begins)
            ends = self._random.awake_s(begins + self._random.handling_s(begins))
            heapq.heappush(self._handler_free_s, ends)
            free = ends + self._random.round_trip_s(ends)
            self._environment.timeout(free - now).callbacks.append(
                lambda _, begin=now, ended=ends, published=published_s: self._freed(begin, ended, published)
            )

    def _freed(self, taken_s: float, ended_s: float, published_s: float) -> None:
        self._account()
        self._occupied -= 1
        self._done += 1
        self._residences.append(float(self._environment.now) - taken_s)
        self._handlings.append(ended_s - taken_s)
        self._latencies.append(ended_s - published_s)
        empty_s = _at(self.plant.replacement_s, float(self._environment.now))
        if empty_s > 0.0 and self._occupied + self._replacing < self._window:
            self._replacing += 1
            self._environment.timeout(empty_s).callbacks.append(lambda _: self._replaced(empty_s))
        else:
            self._hand_out()

    def _replaced(self, empty_s: float) -> None:
        self._account()
        self._replacing -= 1
        before = self._occupied
        self._hand_out()
        if self._occupied > before:  # else it waits for a publisher, which is not the broker's delay
            self._empty_s = empty_s

    def _wake_at(self, time_s: float) -> None:
        now = float(self._environment.now)
        if time_s == math.inf or now < self._alarm_s <= time_s:
            return
        self._alarm_s = time_s
        self._environment.timeout(max(0.0, time_s - now)).callbacks.append(lambda _: self._woken())

    def _woken(self) -> None:
        self._account()
        self._hand_out()


class _Queue:
    """What was published and not handed out; publications are drawn when somebody looks, not as events."""

    def __init__(self, publishers: Workload | None, rng: np.random.Generator) -> None:
        self._endless = publishers is None
        self._arrivals: Iterator[float] = iter(()) if publishers is None else publishers.arrivals(rng)
        self._waiting: deque[float] = deque()
        self.next_s = math.inf if self._endless else next(self._arrivals, math.inf)

    def depth(self, now_s: float) -> float | None:
        self._publish(now_s)
        return None if self._endless else float(len(self._waiting))

    def take(self, now_s: float) -> float | None:
        """When the oldest waiting message was published; None: there is none."""
        if self._endless:
            return now_s
        self._publish(now_s)
        return self._waiting.popleft() if self._waiting else None

    def _publish(self, now_s: float) -> None:
        while self.next_s <= now_s:
            self._waiting.append(self.next_s)
            self.next_s = next(self._arrivals, math.inf)


class _Draws:
    """Handling times and round trips, drawn in blocks: one number at a time is ten times as slow."""

    def __init__(self, plant: ConsumerPlant, rng: np.random.Generator) -> None:
        self._plant = plant
        handling, trip, wander, stalls = rng.spawn(4)
        shape = 1.0 / plant.spread**2 if plant.spread > 0 else math.inf
        self._handling = _blocks(
            lambda n: np.ones(n) if shape == math.inf else handling.gamma(shape, 1 / shape, n)
        )
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

    def handling_s(self, time_s: float) -> float:
        return _at(self._plant.handling_s, time_s) * next(self._handling) * self._factor(time_s)

    def round_trip_s(self, time_s: float) -> float:
        return _at(self._plant.round_trip_s, time_s) * next(self._trip) * self._factor(time_s)

    def _factor(self, time_s: float) -> float:
        second = int(time_s)
        while len(self._wander) <= second:
            self._wander.append(next(self._factors))
        return self._wander[second]


def _blocks(draw: Callable[[int], Array]) -> Iterator[float]:
    while True:
        yield from draw(4096).tolist()


def staircase(
    plant: ConsumerPlant, windows: list[int], *, samples_each: int = 1, period_s: float = 1.0, seed: int = 1
) -> tuple[Array, Array]:
    """Run the prefetch paper's open-loop experiment, some samples for each window; return windows and rates."""
    environment = require("simpy", "lab").Environment()
    consumer = RunningConsumer(plant, environment, np.random.default_rng(seed))
    rates: list[float] = []
    for window in windows:
        consumer.set_window(window)
        for _ in range(samples_each):
            environment.run(until=environment.now + period_s)
            rates.append(consumer.measure().rate_per_s or 0.0)
    return np.repeat(np.array(windows, dtype=float), samples_each), np.array(rates)


def _at(value: Changing, time_s: float) -> float:
    return value(time_s) if callable(value) else value
