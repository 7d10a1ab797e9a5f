"""The loop of the strategy `load`: from what members report to who should own which queue.

Ranked goals: no queue is without an owner; the largest utilisation is small; few queues move. Every call follows
the reports (`load_estimates`); free queues are placed at once; others move once an interval, as `load` decides.

Until its estimates are there a queue weighs as much as the mean of the others, and does not move; a member
counts as fast as the mean. Idle queues are dealt out by number: their first messages would overload a member
that has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from flyball.groups.policy.estimate import SPAN
from flyball.groups.policy.group import Queue
from flyball.groups.policy.load import LoadDecision, LoadedGroup, LoadLimits, decide_load, place_free, utilisations
from flyball.groups.policy.load_estimates import (
    Filtering,
    LoadState,
    MemberEstimate,
    QueueEstimate,
    observe_loads,
)
from flyball.groups.policy.plan import number_owners
from flyball.groups.policy.reports import Report

SAMPLES = 24
"""Samples until the error of an estimate is known."""

_EARLY_S = 1e-6
"""rounding of a clock that is read once a round."""

Code: TypeAlias = Literal["warm-up", "moved", "balanced", "too-heavy"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`interval_s`: from one decision to the next. `limits.band` is in busy handlers, and beyond one that is
    busy on average in parts of the mean.
    """

    limits: LoadLimits = field(default_factory=lambda: LoadLimits(confidence=4.0, move_cost=0.01, settle=0.25))
    interval_s: float = 20.0

    @property
    def filtering(self) -> Filtering:
        """Averages remember three decisions; what all of a member's queues show is known at the next."""
        every_s = self.interval_s
        return Filtering(
            recent_s=every_s / 4.0, memory_s=3.0 * every_s, work_s=30.0 * every_s, sample_s=every_s / SPAN
        )


@dataclass(frozen=True, slots=True)
class LoadReason:
    """Why queues moved or did not: a code for programs and a sentence for people."""

    code: Code
    sentence: str


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """The owner of every queue that somebody reads, what moves between members, and why.

    `utilisation`: work that arrives at a member after the moves / work that it can do. Between decisions, when no
    queue is free, there is nothing but the owners.
    """

    owners: Mapping[Queue, str]
    moved: tuple[Queue, ...]
    utilisation: Mapping[str, float]
    too_heavy: tuple[Queue, ...]
    reasons: tuple[LoadReason, ...]


def step_load(
    state: LoadState,
    reports: Mapping[str, Report],
    owners: Mapping[Queue, str],
    options: LoadOptions,
    now_s: float,
    topics: Mapping[str, int] | None = None,
) -> tuple[LoadState, LoadAnswer]:
    """Follow the reports, and decide; for whoever does both at once. A coordinator plans less often than it
    looks.

    `topics`: the number of queues of each topic; by default the queues are those that have an owner.
    """
    state = observe_loads(state, reports, owners, options.filtering, now_s)
    queues = owners if topics is None else [(topic, n) for topic, count in topics.items() for n in range(count)]
    return decide_loads(state, reports, queues, owners, options, now_s)


def decide_loads(
    state: LoadState,
    reports: Mapping[str, Report],
    queues: Iterable[Queue],
    owners: Mapping[Queue, str],
    options: LoadOptions,
    now_s: float,
) -> tuple[LoadState, LoadAnswer]:
    """Place free queues, and move queues if a decision is due.

    `reports` has the members of the group. Those that are active may get queues; the queues of members that are
    away stay with them; those of everybody else are free. `owners` is the plan before, so that moves under way
    count as done.
    """
    away = {
        queue: owners[queue]
        for queue in queues
        if queue in owners and owners[queue] in reports and reports[owners[queue]].stage == "away"
    }
    members = sorted(name for name, report in reports.items() if report.stage == "active")
    queues = sorted(set(queues) - away.keys())
    if not members or not queues:
        return state, LoadAnswer(away, (), {}, (), ())
    warm = state.samples >= SAMPLES
    due = warm and (state.decided_s is None or now_s - state.decided_s >= options.interval_s - _EARLY_S)
    active = set(members)
    if not due and all(owners.get(queue) in active for queue in queues):
        return state, LoadAnswer({**away, **{queue: owners[queue] for queue in queues}}, (), {}, (), ())
    group = _loaded_group(state, reports, queues, owners, members)
    least = options.limits.band * len(members) / len(queues)
    group_after = replace(group, owners=place_free(replace(group, weights=np.maximum(group.weights, least))))
    fair = float(group.weights.sum() / group.capacities.sum())
    limits = replace(options.limits, band=options.limits.band * max(1.0, fair))
    decision = decide_load(group_after, limits if due else replace(limits, max_moves=0))
    if due:
        state = replace(state, decided_s=now_s)
        if not decision.moved:
            decision = replace(_spread_idle(group_after, least, limits), too_heavy=decision.too_heavy)
    used = dict(zip(members, utilisations(group, decision.owners).tolist(), strict=True))
    moved = tuple(queues[index] for index in decision.moved if group.owners[index] != decision.owners[index])
    too_heavy = tuple(queues[index] for index in decision.too_heavy) if warm else ()
    assigned = {q: members[index] for q, index in zip(queues, decision.owners.tolist(), strict=True) if index >= 0}
    reasons = _reasons(state, moved, too_heavy, used)
    return state, LoadAnswer({**away, **assigned}, moved, used, too_heavy, reasons)


def _spread_idle(group: LoadedGroup, least: float, limits: LoadLimits) -> LoadDecision:
    """Move idle queues away from a member that has more than twice the mean number of queues.

    Idle is a queue that would never move for its load, so that the one rule does not undo what the other did.
    """
    idle = group.weights < min(least, limits.move_cost * float(group.capacities.min()))
    return decide_load(
        LoadedGroup(
            weights=np.full(group.weights.size, least),
            errors=np.where(idle, 0.0, np.inf),
            owners=group.owners,
            capacities=np.ones(group.capacities.size),
            allowed=group.allowed,
            capacity_errors=None,
        ),
        replace(limits, confidence=0.0, move_cost=0.0, settle=1.0),
    )


def _loaded_group(
    state: LoadState,
    reports: Mapping[str, Report],
    queues: list[Queue],
    owners: Mapping[Queue, str],
    members: list[str],
) -> LoadedGroup:
    estimates = {(one.topic, one.number): one for one in state.queues}
    weights, errors = _weights(queues, estimates)
    capacities, capacity_errors = _capacities(members, state.members)
    active = set(members)
    return LoadedGroup(
        weights=weights,
        errors=errors,
        owners=number_owners(queues, {q: m for q, m in owners.items() if m in active}, members),
        capacities=capacities,
        allowed=np.array([[queue[0] in reports[name].topics for name in members] for queue in queues], bool),
        capacity_errors=capacity_errors,
    )


def _weights(queues: list[Queue], estimates: Mapping[Queue, QueueEstimate]) -> tuple[np.ndarray, np.ndarray]:
    """Weights and their standard errors; infinite while there is none."""
    weights, errors = np.full(len(queues), np.nan), np.full(len(queues), np.inf)
    for index, queue in enumerate(queues):
        one = estimates.get(queue)
        if one is None:
            continue
        work_s = one.work_s or 0.0  # nothing arrived yet
        weights[index] = one.rate.mean * work_s
        if one.rate.samples >= SAMPLES:
            errors[index] = one.rate.error * work_s
    unknown = np.isnan(weights)
    weights[unknown] = weights[~unknown].mean() if not unknown.all() else 0.0
    return weights, errors


def _capacities(members: list[str], estimates: tuple[MemberEstimate, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Capacities and their relative standard errors; the mean of the others while there is none."""
    slowdowns = {one.name: one.slowdown for one in estimates}
    known = [1.0 / slowdowns[name].mean for name in members if name in slowdowns]
    mean = sum(known) / len(known) if known else 1.0
    capacities, errors = np.full(len(members), mean), np.zeros(len(members))
    for index, name in enumerate(members):
        if name in slowdowns:
            capacities[index] = 1.0 / slowdowns[name].mean
            errors[index] = slowdowns[name].error / slowdowns[name].mean
    return capacities, errors


def _reasons(
    state: LoadState, moved: tuple[Queue, ...], too_heavy: tuple[Queue, ...], used: Mapping[str, float]
) -> tuple[LoadReason, ...]:
    reasons = []
    top = max(used, key=lambda name: (used[name], name))
    mean = sum(used.values()) / len(used)
    after = f"the largest utilisation is {used[top]:.2f} ({top}), the mean {mean:.2f}"
    if state.samples < SAMPLES:
        reasons.append(
            LoadReason("warm-up", f"the loads are being estimated: {state.samples} of {SAMPLES} samples")
        )
    elif moved:
        count = "1 queue moves" if len(moved) == 1 else f"{len(moved)} queues move"
        reasons.append(LoadReason("moved", f"{count}; then {after}"))
    else:
        reasons.append(LoadReason("balanced", f"no move would gain more than the noise: {after}"))
    for topic, number in too_heavy:
        reasons.append(
            LoadReason("too-heavy", f"queue {topic}.{number} alone is more than the fair share of any member")
        )
    return tuple(reasons)
