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
from typing import Any

import numpy as np

from flyball.consumer.policy import (
    ConsumerMeasurement,
    DepthReading,
    estimate_publish_rate,
    median_residence,
)
from flyball.consumer.policy.goals import LOW_QUANTILE
from flyball.consumer.policy.pacing import Actuation, TokenBucket, count_tokens, take_token
from flyball.consumer.policy.retry import RetryPolicy
from flyball.control.models import Array
from flyball.errors import require
from flyball.twin.consumer_plant import ConsumerPlant, Draws, MessageQueue, at

__all__ = ["ConsumerPlant", "RunningConsumer", "staircase"]

_RETRY = RetryPolicy()
_REACTION_S = 2e-4


class RunningConsumer:
    """The plant in virtual time: an actuator (`set_window`) and a sensor (`measure`).

    `beside` is another consumer of the same queue; with `shares_handlers` both wait for the same handlers, as
    programs do that use the same database.
    """

    def __init__(
        self,
        plant: ConsumerPlant,
        environment: Any,
        rng: np.random.Generator,
        *,
        beside: RunningConsumer | None = None,
        shares_handlers: bool = False,
    ) -> None:
        self.plant = plant
        self._environment = environment
        queue_rng = rng.spawn(1)[0]
        self._queue: MessageQueue = MessageQueue(plant, queue_rng) if beside is None else beside._queue
        self._queue.readers += 1
        self._reaction = queue_rng  # of several that wait for a message, any one may be the first
        self._random = Draws(plant, rng)
        self._window = 0
        self._occupied = 0
        self._replacing = 0  # empty slots for which the broker was asked
        self._empty_s = 0.0  # how long one was empty, last
        self._client_free_s = 0.0
        self._handler_free_s: list[float] = (
            beside._handler_free_s if beside is not None and shares_handlers else [0.0] * plant.handlers
        )
        self._ready: deque[tuple[float, int]] = deque()  # their pause is over: when published, attempts
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
        self._total_s = 0.0
        self._lost_s = 0.0  # in slots, by attempts that failed
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
            mean_residence_s=self._total_s / self._done if self._done else None,
            handling_low_s=float(np.quantile(self._handlings, LOW_QUANTILE)) if self._handlings else None,
        )
        self._done, self._total_s = 0, 0.0
        self._since_s, self._full_s = now, 0.0
        self._tick_means_s, self._handlings, self._latencies = [], [], []
        return measurement

    def _end_tick(self) -> None:
        if self._residences:
            total_s = sum(self._residences) + self._lost_s
            self._tick_means_s.append(total_s / len(self._residences) + self._empty_s)
            self._total_s += total_s + len(self._residences) * self._empty_s
            self._residences, self._lost_s = [], 0.0

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
            attempts = 0
            if self._ready:
                published_s, attempts = self._ready.popleft()
            else:
                published = self._queue.take(now)
                if published is None:
                    reaction_s = _REACTION_S * self._reaction.random() if self._queue.readers > 1 else 0.0
                    self._wake_at(self._queue.next_s(now) + reaction_s)
                    return
                published_s = published
                if pace is not None:
                    self._bucket, _ = take_token(self._bucket, now, pace, burst_s)
            self._begin(now, published_s, attempts)

    def _begin(self, now: float, published_s: float, attempts: int) -> None:
        self._occupied += 1
        self.most_occupied = max(self.most_occupied, self._occupied)
        self._client_free_s = max(self._client_free_s, now) + self.plant.client_s
        begins = self._random.awake_s(max(self._client_free_s, heapq.heappop(self._handler_free_s)))
        ends = self._random.awake_s(begins + self._random.handling_s(begins))
        heapq.heappush(self._handler_free_s, ends)
        if not attempts:
            self._begins_s.append(begins)
        if attempts or self._random.fails():
            attempts += 1
        if 0 < attempts <= _RETRY.retries:
            self._environment.timeout(ends - now).callbacks.append(
                lambda _, begin=now, published=published_s, made=attempts: self._failed(begin, published, made)
            )
            return
        free = ends + self._random.round_trip_s(ends)
        if self.plant.outages:
            free = self.plant.reachable_s(free)
        self._environment.timeout(free - now).callbacks.append(
            lambda _, begin=now, ended=ends, published=published_s: self._freed(begin, ended, published)
        )

    def _failed(self, taken_s: float, published_s: float, attempts: int) -> None:
        """Leave the slot for a pause; its time in it counts for the messages that are done."""
        self._account()
        self._occupied -= 1
        self._lost_s += float(self._environment.now) - taken_s
        pause_s = min(_RETRY.first_s * 2.0 ** (attempts - 1), _RETRY.longest_s)
        self._environment.timeout(pause_s).callbacks.append(lambda _: self._retry(published_s, attempts))
        self._hand_out()

    def _retry(self, published_s: float, attempts: int) -> None:
        self._account()
        self._ready.append((published_s, attempts))
        self._hand_out()

    def _freed(self, taken_s: float, ended_s: float, published_s: float) -> None:
        self._account()
        self._occupied -= 1
        self._done += 1
        self._residences.append(float(self._environment.now) - taken_s)
        self._handlings.append(ended_s - taken_s)
        self._latencies.append(ended_s - published_s)
        empty_s = at(self.plant.replacement_s, float(self._environment.now))
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
