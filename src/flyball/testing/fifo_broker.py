"""A broker in virtual time for tests of the publisher's policy: a network delay, one queue, one server, confirms.

Publishers accept messages at given rates; each runs the real policy. The messages of all wait in one queue that is
served one by one; a batch is confirmed when its last message has been served and the answer has come back, which
takes an exponential time of mean `jitter_s` longer (answers to one publisher do not overtake each other).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flyball.control.record import LoopRecord
from flyball.publisher import policy as rules


@dataclass
class Source:
    """A publisher under test: `rate(t)` messages a second from `start_s` on."""

    policy: rules.Policy
    rate: Callable[[float], float]
    start_s: float = 0.0
    batch: int = 1
    state: Any = None
    waiting: deque[float] = field(default_factory=deque)
    confirmed: list[tuple[float, int]] = field(default_factory=list)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    records: list[LoopRecord] = field(default_factory=list)
    sent: list[rules.Batch] = field(default_factory=list)
    credit: float = 0.0
    answered_s: float = 0.0
    wake_s: float | None = None


class FifoBroker:
    def __init__(
        self,
        sources: list[Source],
        *,
        capacity: Callable[[float], float],
        round_trip_s: float,
        tick_s: float = 0.002,
        jitter_s: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.sources = sources
        self.capacity = capacity
        self.round_trip_s = round_trip_s
        self.tick_s = tick_s
        self.jitter_s = jitter_s
        self._random = random.Random(seed)
        self.free_s = 0.0
        self.blocked_until_s = -1.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []

    def at(self, time_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), act))

    def run(self, until_s: float) -> None:
        for source in self.sources:
            self.at(source.start_s, lambda t, s=source: self._open(s, t))  # type: ignore[misc]  # mypy infers no lambda default
        while self._events and self._events[0][0] <= until_s:
            time_s, _, act = heapq.heappop(self._events)
            act(time_s)

    def handle(self, source: Source, event: rules.Event) -> None:
        """Let the policy of a source decide about an event, and carry out its decisions."""
        source.state, decisions = rules.decide(source.policy, source.state, event)
        source.records += decisions.records
        for batch in decisions.send:
            self._send(source, batch)
        source.wake_s = decisions.wake_s
        if decisions.wake_s is not None:
            self.at(decisions.wake_s, lambda t: self._wake(source, t))

    def _wake(self, source: Source, now_s: float) -> None:
        if source.wake_s is not None and source.wake_s <= now_s:
            source.wake_s = None
            self.handle(source, rules.Timer(now_s))

    def _open(self, source: Source, now_s: float) -> None:
        source.state = rules.start(source.policy, now_s, batch=source.batch)
        self._offer(source, now_s)

    def _offer(self, source: Source, now_s: float) -> None:
        source.credit += source.rate(now_s) * self.tick_s
        count = int(source.credit)
        source.credit -= count
        if count:
            source.waiting.extend([now_s] * count)
            self.handle(source, rules.Accepted(now_s, count))
        self.at(now_s + self.tick_s, lambda t: self._offer(source, t))

    def _send(self, source: Source, batch: rules.Batch) -> None:
        source.sent.append(batch)
        accepted = [source.waiting.popleft() for _ in range(batch.count)]
        arrives_s = batch.sent_s + self.round_trip_s / 2

        def arrive(now_s: float) -> None:
            begins_s = max(now_s, self.free_s, self.blocked_until_s)
            self.free_s = begins_s + batch.count / self.capacity(now_s)
            late_s = self._random.expovariate(1.0 / self.jitter_s) if self.jitter_s else 0.0
            source.answered_s = max(source.answered_s, self.free_s + self.round_trip_s / 2 + late_s)
            self.at(source.answered_s, confirm)

        def confirm(now_s: float) -> None:
            source.confirmed.append((now_s, batch.count))
            source.latencies += [(t, now_s - t) for t in accepted]
            self.handle(source, rules.Confirmed(now_s, batch))

        self.at(arrives_s, arrive)


def jain(shares: list[float]) -> float:
    """Jain's index of fairness: 1 if all shares are equal, 1/n if one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
