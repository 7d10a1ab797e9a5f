"""Queues that fill, and members that serve them one message after the other.

Time goes in ticks; within one, arrivals and service are sums over many messages, drawn from their
distributions. A member divides its time among its queues by the work that waits in them. A queue that changes
hands is unread for the time of a hand-over, and its backlog comes with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import QueueLoad, Report

Floats: TypeAlias = NDArray[np.float64]
Pattern: TypeAlias = Literal["poisson", "bursts", "diurnal"]


@dataclass(frozen=True, slots=True)
class QueueModel:
    """`rate_per_s` of arrivals on average, each with `work_s` of work, which varies by `work_cv` (relative).

    `bursts`: the rate alternates between twice its mean and nothing, for `period_s` / 2 on average each;
    `diurnal`: it follows a sine around its mean, with half its size and that period.
    """

    queue: Queue
    rate_per_s: float
    work_s: float
    work_cv: float = 1.0
    pattern: Pattern = "poisson"
    period_s: float = 20.0
    starts_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MemberModel:
    """`slowdown`: busy seconds for a second of work. From `slower_at_s` on it is `slower` times that."""

    name: str
    slowdown: float = 1.0
    slower_at_s: float = math.inf
    slower: float = 3.0

    def slowdown_at(self, time_s: float) -> float:
        return self.slowdown * (self.slower if time_s >= self.slower_at_s else 1.0)


class GroupPlant:
    """The group in virtual time; `owners` says who reads which queue, and changes by `assign` only."""

    def __init__(
        self,
        queues: Sequence[QueueModel],
        members: Sequence[MemberModel],
        owners: Mapping[Queue, str],
        rng: np.random.Generator,
        *,
        tick_s: float = 1.0,
        hand_over_s: float = 2.0,
    ) -> None:
        self.queues, self.members, self.tick_s, self.hand_over_s = queues, members, tick_s, hand_over_s
        self.owners: dict[Queue, str] = dict(owners)
        self.now_s = 0.0
        self.backlog = np.zeros(len(queues))
        self.received, self.service_s = np.zeros(len(queues)), np.full(len(queues), np.nan)
        self.busy: Floats = np.zeros(len(members))
        self._rng = rng
        self._rates = np.array([one.rate_per_s for one in queues])
        self._work_s = np.array([one.work_s for one in queues])
        self._cv = np.array([one.work_cv for one in queues])
        self._starts_at_s = np.array([one.starts_at_s for one in queues])
        self._free_from_s = np.zeros(len(queues))
        self._number = {one.name: index for index, one in enumerate(members)}
        self._numbers = np.array([self._number[self.owners[one.queue]] for one in queues])
        self._on = rng.random(len(queues)) < 0.5

    @property
    def weights(self) -> Floats:
        """Work that arrives at each queue in a second, on average, now."""
        weights: Floats = self._rates * self._work_s * (self._starts_at_s <= self.now_s)
        return weights

    def capacities(self, time_s: float | None = None) -> Floats:
        time_s = self.now_s if time_s is None else time_s
        return np.array([1.0 / one.slowdown_at(time_s) for one in self.members])

    def utilisations(self) -> Floats:
        """Work that arrives on average at each member / work that it can do now."""
        used: Floats = np.zeros(len(self.members))
        np.add.at(used, self._numbers, self.weights)
        return used / self.capacities()

    def assign(self, owners: Mapping[Queue, str]) -> int:
        """Begin to hand queues over to their new owners; return how many."""
        moves = 0
        for index, one in enumerate(self.queues):
            owner = owners[one.queue]
            if owner != self.owners[one.queue]:
                self.owners[one.queue] = owner
                self._numbers[index] = self._number[owner]
                self._free_from_s[index] = self.now_s + self.hand_over_s
                moves += 1
        return moves

    def advance(self) -> None:
        """One tick: messages arrive and are served."""
        self.backlog += self._rng.poisson(self._intensities() * self.tick_s)
        slowdowns = np.array([one.slowdown_at(self.now_s) for one in self.members])
        owner = self._numbers
        readable = np.where(self._free_from_s <= self.now_s, self.backlog, 0.0)
        # the mean over n messages varies by 1/√n of what one does
        noise = self._cv / np.sqrt(np.maximum(readable, 1.0))
        work_s = self._work_s * np.maximum(0.1, 1.0 + noise * self._rng.standard_normal(len(self.queues)))
        service_s = work_s * slowdowns[owner]
        needed_s = np.bincount(owner, readable * service_s, minlength=len(self.members))
        share = np.minimum(1.0, self.tick_s / np.maximum(needed_s, 1e-12))
        done = readable * share[owner]
        self.backlog -= done
        self.received = done / self.tick_s
        self.service_s = np.where(done > 0, service_s, np.nan)
        self.busy = np.minimum(1.0, needed_s / self.tick_s)
        self.now_s += self.tick_s

    def reports(self) -> dict[str, Report]:
        """What the members would report of the last tick."""
        loads: dict[str, dict[Queue, QueueLoad]] = {one.name: {} for one in self.members}
        busy = dict(zip((one.name for one in self.members), self.busy.tolist(), strict=True))
        for index, one in enumerate(self.queues):
            if self._free_from_s[index] > self.now_s:
                continue
            owner, service_s = self.owners[one.queue], float(self.service_s[index])
            loads[owner][one.queue] = QueueLoad(
                arrival_per_s=float(self.received[index]),
                service_s=None if math.isnan(service_s) else service_s,
                busy=busy[owner],
                depth=int(self.backlog[index]),
            )
        topics: dict[str, int | None] = dict.fromkeys({one.queue[0] for one in self.queues})
        return {one.name: Report(topics, loads=loads[one.name]) for one in self.members}

    def _intensities(self) -> Floats:
        rates: Floats = self._rates * (self._starts_at_s <= self.now_s)
        switch = self._rng.random(len(self.queues))
        for index, one in enumerate(self.queues):
            if one.pattern == "bursts":
                self._on[index] ^= switch[index] < 2.0 * self.tick_s / one.period_s
                rates[index] *= 2.0 if self._on[index] else 0.0
            elif one.pattern == "diurnal":
                rates[index] *= 1.0 + 0.5 * math.sin(2.0 * math.pi * self.now_s / one.period_s)
        return rates
