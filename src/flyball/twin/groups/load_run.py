"""One run of a group under a balancer: what moved, and how even the members were utilised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flyball.groups.policy.group import Queue
from flyball.groups.policy.load_estimates import LoadState
from flyball.groups.policy.load_loop import LoadAnswer, LoadOptions, step_load
from flyball.groups.policy.reports import Report
from flyball.twin.groups.plant import GroupPlant


class Balancer(Protocol):
    """Says from the members' reports, once a tick, who should own which queue."""

    def step(
        self, reports: Mapping[str, Report], owners: Mapping[Queue, str], now_s: float
    ) -> Mapping[Queue, str]: ...


@dataclass
class LoadLoop:
    """The loop of the strategy `load`, with its state."""

    options: LoadOptions = field(default_factory=LoadOptions)
    state: LoadState = field(default_factory=LoadState)
    answer: LoadAnswer | None = None
    too_heavy: tuple[Queue, ...] = ()
    """of the latest decision."""

    def step(
        self, reports: Mapping[str, Report], owners: Mapping[Queue, str], now_s: float
    ) -> Mapping[Queue, str]:
        self.state, self.answer = step_load(self.state, reports, owners, self.options, now_s)
        if self.answer.reasons:
            self.too_heavy = self.answer.too_heavy
        return self.answer.owners


@dataclass(frozen=True, slots=True)
class LoadRun:
    """`moves` of each tick; `utilisation` of each member after it, as it is and not as it is measured.

    The mean is all work that arrives / all work that the members can do.
    """

    times_s: NDArray[np.float64]
    moves: NDArray[np.int64]
    utilisation: NDArray[np.float64]
    mean: NDArray[np.float64]

    def moves_between(self, start_s: float, end_s: float) -> int:
        return int(self.moves[(self.times_s >= start_s) & (self.times_s < end_s)].sum())

    def spread_at(self, time_s: float) -> float:
        """Largest / mean utilisation at a time."""
        index = min(int(np.searchsorted(self.times_s, time_s)), self.times_s.size - 1)
        return float(self.utilisation[index].max() / self.mean[index])


def run_load(plant: GroupPlant, balancer: Balancer, until_s: float) -> LoadRun:
    """Run the plant; the balancer is asked once a tick."""
    times, moves, used, mean = [], [], [], []
    while plant.now_s < until_s:
        plant.advance()
        moves.append(plant.assign(balancer.step(plant.reports(), plant.owners, plant.now_s)))
        times.append(plant.now_s)
        used.append(plant.utilisations())
        mean.append(plant.weights.sum() / plant.capacities().sum())
    return LoadRun(np.array(times), np.array(moves), np.array(used), np.array(mean))
