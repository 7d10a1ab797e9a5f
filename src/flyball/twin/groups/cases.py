"""Random groups, by seed: what one plant alone would not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flyball.groups.policy.group import Claims, Group, Queue
from flyball.groups.policy.group import Member as GroupMember
from flyball.groups.policy.load import LoadedGroup, LoadLimits, assign_load
from flyball.twin.groups.plant import GroupPlant, MemberModel, Pattern, QueueModel


@dataclass(frozen=True, slots=True)
class LoadCase:
    """A group, who owns what at first, and the mean utilisation of its members."""

    queues: tuple[QueueModel, ...]
    members: tuple[MemberModel, ...]
    owners: dict[Queue, str]
    utilisation: float

    def plant(self, seed: int) -> GroupPlant:
        return GroupPlant(self.queues, self.members, self.owners, np.random.default_rng(seed))

    def loaded(self, time_s: float) -> LoadedGroup:
        """Weights and capacities as they are at a time, for whoever judges an assignment."""
        plant = self.plant(0)
        numbers = {model.name: number for number, model in enumerate(self.members)}
        return LoadedGroup(
            weights=plant.weights,
            errors=np.zeros(len(self.queues)),
            owners=np.array([numbers[self.owners[model.queue]] for model in self.queues]),
            capacities=plant.capacities(time_s),
            allowed=np.ones((len(self.queues), len(self.members)), bool),
        )


def heavy_case(seed: int, *, slower_at_s: float) -> LoadCase:
    """3 to 5 members with 3 queues each, one of which brings about twice a member's fair share."""
    draw = np.random.default_rng(seed)
    members = int(draw.integers(3, 6))
    models = tuple(
        MemberModel(f"m{number}", slower_at_s=slower_at_s if number == 0 else float("inf"))
        for number in range(members)
    )
    weights = draw.uniform(0.5, 1.5, 3 * members)
    weights *= 0.4 * members / weights.sum()
    weights[0] = 0.9
    queues = tuple(
        QueueModel(("t", number), rate_per_s=float(weight) / 0.01, work_s=0.01)
        for number, weight in enumerate(weights)
    )
    owners = {queue.queue: models[number % members].name for number, queue in enumerate(queues)}
    return LoadCase(queues, models, owners, float(weights.sum() / members))


def idle_case(wake_at_s: float) -> LoadCase:
    """Four members; 4 queues that are busy, and 36 that are idle until all of them wake up."""
    queues = tuple(
        QueueModel(("t", number), rate_per_s=10.0, work_s=0.01, starts_at_s=0.0 if number < 4 else wake_at_s)
        for number in range(40)
    )
    owners = {model.queue: f"m{model.queue[1] % 4}" for model in queues}
    return LoadCase(queues, tuple(MemberModel(f"m{number}") for number in range(4)), owners, 0.1)


def random_case(
    seed: int,
    *,
    pattern: Pattern | Literal["mixed"] = "poisson",
    utilisation: float | None = None,
    slower_at_s: float | None = None,
) -> LoadCase:
    """3 to 12 members that differ in speed, 4 to 12 queues each that differ in rate and work, in 1 to 3 topics.

    At first the queues are balanced by what the members can do at the start. `slower_at_s`: the first member
    becomes three times slower then.
    """
    draw = np.random.default_rng(seed)
    members, each, topics = int(draw.integers(3, 13)), int(draw.integers(4, 13)), int(draw.integers(1, 4))
    utilisation = float(draw.uniform(0.1, 0.7)) if utilisation is None else utilisation
    speeds = np.exp(draw.normal(0.0, 0.25, members))
    models = tuple(
        MemberModel(
            f"m{number:02d}",
            slowdown=1.0 / float(speed),
            slower_at_s=slower_at_s if slower_at_s is not None and number == 0 else float("inf"),
        )
        for number, speed in enumerate(speeds)
    )
    size = members * each
    names = [(f"t{number % topics}", number // topics) for number in range(size)]
    work_s = np.exp(draw.uniform(np.log(0.002), np.log(0.05), topics))
    weights = np.exp(draw.normal(0.0, 0.5, size))
    weights *= utilisation * speeds.sum() / weights.sum()
    patterns: tuple[Pattern, ...] = ("poisson", "bursts", "diurnal")
    queues = tuple(
        QueueModel(
            name,
            rate_per_s=float(weight / work_s[number % topics]),
            work_s=float(work_s[number % topics]),
            work_cv=float(draw.uniform(0.2, 1.5)),
            pattern=patterns[int(draw.integers(3))] if pattern == "mixed" else pattern,
            period_s=3600.0 if pattern == "diurnal" else 20.0,
        )
        for number, (name, weight) in enumerate(zip(names, weights, strict=True))
    )
    group = Group(
        {f"t{topic}": [number for name, number in names if name == f"t{topic}"] for topic in range(topics)},
        {
            model.name: GroupMember(frozenset(f"t{topic}" for topic in range(topics)), capacity=float(speed))
            for model, speed in zip(models, speeds, strict=True)
        },
    )
    plan = assign_load(
        group, Claims(), dict(zip(names, weights.tolist(), strict=True)), LoadLimits(max_moves=None)
    )
    owners = {queue: member for member, given in plan.plan.assignment.items() for queue in given}
    return LoadCase(queues, models, owners, utilisation)
