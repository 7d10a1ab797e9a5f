"""Balancers as others have published them, reduced to the rule that fails: for comparison.

`RelativeBand`: a member is relieved when it is above 1.1 × the mean (Kinesis Client Library 3; its pull request
1814 describes what happens at low load). `FilteredLoad`: a member's load is an average in which the past weighs
0.9, and is compared with the mean plus ten points (Pulsar's ThresholdShedder; PIP-364 describes how it unloads
too much). `LagAlone`: queues are dealt out by their backlog, the largest first, to the member with the least so
far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.control.filters import ewma
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import Report


@dataclass
class _Interval:
    """Means of what was measured in the current interval."""

    every_s: float
    started_s: float = 0.0
    ticks: int = 0
    sums: dict[Queue, float] = field(default_factory=dict)

    def add(self, reports: Mapping[str, Report], now_s: float) -> dict[Queue, float] | None:
        """The mean utilisation by each queue over the interval that ends now; None: it goes on."""
        self.ticks += 1
        for report in reports.values():
            for queue, load in report.loads.items():
                used = (load.arrival_per_s or 0.0) * (load.service_s or 0.0)
                self.sums[queue] = self.sums.get(queue, 0.0) + used
        if now_s - self.started_s < self.every_s:
            return None
        means = {queue: total / self.ticks for queue, total in self.sums.items()}
        self.started_s, self.ticks, self.sums = now_s, 0, {}
        return means


def _by_member(
    used: Mapping[Queue, float], owners: Mapping[Queue, str], members: Mapping[str, Report]
) -> dict[str, float]:
    loads = dict.fromkeys(sorted(members), 0.0)
    for queue, owner in owners.items():
        loads[owner] += used.get(queue, 0.0)
    return loads


def _unload(
    member: str,
    amount: float,
    used: Mapping[Queue, float],
    loads: dict[str, float],
    owners: dict[Queue, str],
) -> None:
    """Move about `amount` of a member's load, the heaviest queues that fit first, and one queue at least."""
    queues = sorted((q for q in owners if owners[q] == member), key=lambda q: (-used.get(q, 0.0), q))
    fitting = []
    for queue in queues:
        if 0.0 < used.get(queue, 0.0) <= amount:
            fitting.append(queue)
            amount -= used[queue]
    for queue in fitting or queues[-1:]:
        target = min(loads, key=lambda name: (loads[name], name))
        owners[queue] = target
        loads[target] += used.get(queue, 0.0)
        loads[member] -= used.get(queue, 0.0)


@dataclass(kw_only=True)
class _Periodic(ABC):
    """Moves queues at the end of each interval, by the loads that were measured in it."""

    every_s: float = 20.0
    _interval: _Interval = field(init=False)

    def __post_init__(self) -> None:
        self._interval = _Interval(self.every_s)

    def step(
        self, reports: Mapping[str, Report], owners: Mapping[Queue, str], now_s: float
    ) -> Mapping[Queue, str]:
        used = self._interval.add(reports, now_s)
        if used is None:
            return owners
        planned = dict(owners)
        self._move(used, _by_member(used, owners, reports), planned)
        return planned

    @abstractmethod
    def _move(self, used: Mapping[Queue, float], loads: dict[str, float], owners: dict[Queue, str]) -> None:
        """Change the owners."""


@dataclass
class RelativeBand(_Periodic):
    """Relieve members above (1 + `band`) × the mean by `part` of what they have above the mean."""

    band: float = 0.1
    part: float = 0.6

    def _move(self, used: Mapping[Queue, float], loads: dict[str, float], owners: dict[Queue, str]) -> None:
        mean = sum(loads.values()) / len(loads)
        for member in sorted(loads, key=lambda name: (-loads[name], name)):
            if loads[member] > (1.0 + self.band) * mean:
                _unload(member, self.part * (loads[member] - mean), used, loads, owners)


@dataclass
class FilteredLoad(_Periodic):
    """Relieve members whose filtered load is above the mean by more than `threshold`, down to the mean."""

    keep: float = 0.9
    threshold: float = 0.1
    _filtered: dict[str, float] = field(default_factory=dict)

    def _move(self, used: Mapping[Queue, float], loads: dict[str, float], owners: dict[Queue, str]) -> None:
        for member, load in loads.items():
            self._filtered[member] = ewma(self._filtered.get(member), load, self.keep)
        mean = sum(self._filtered.values()) / len(self._filtered)
        for member in sorted(self._filtered):
            above = self._filtered[member] - mean
            if above > self.threshold:
                _unload(member, above, used, dict(self._filtered), owners)


@dataclass
class LagAlone:
    """Deal all queues out by their backlog; of members with the same sum the first gets the queue."""

    every_s: float = 20.0
    _decided_s: float = 0.0

    def step(
        self, reports: Mapping[str, Report], owners: Mapping[Queue, str], now_s: float
    ) -> Mapping[Queue, str]:
        if now_s - self._decided_s < self.every_s:
            return owners
        self._decided_s = now_s
        lags = {queue: load.depth or 0 for report in reports.values() for queue, load in report.loads.items()}
        sums = dict.fromkeys(sorted(reports), 0)
        planned = dict(owners)
        for queue in sorted(owners, key=lambda q: (-lags.get(q, 0), q)):
            target = min(sums, key=lambda name: (sums[name], name))
            planned[queue] = target
            sums[target] += lags.get(queue, 0)
        return planned
