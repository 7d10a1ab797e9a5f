"""Every member reads every topic, and one leaves or joins, from arrays.

An array has the owner of each queue as a number in the sorted ids of the members before. The time has the
conversion into numbers in the ids after, the plan and the difference. `linear` is the cost of a queue at a million
beside that at a thousand, each with a hundred queues a member.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from functools import partial

import numpy as np

from flyball.groups.policy.equal import assign_equal
from flyball.groups.policy.level_fill import Ints
from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.groups.timing import milliseconds

QUEUES, MEMBERS = 1_000_000, 10_000


def cases(context: BenchContext) -> Iterator[Row]:
    repeat = 5 if context.quick else 21
    costs = {}
    for queues in (1_000, 10_000, 100_000, QUEUES):
        names = [f"m{index:05d}" for index in range(max(2, queues * MEMBERS // QUEUES))]
        without = names[: len(names) // 2] + names[len(names) // 2 + 1 :]
        for event, before, after in (("leave", names, without), ("join", without, names)):
            owners = assign_equal(np.full(queues, -1), len(before))
            spent = milliseconds(partial(_rebalance, owners, before, after), repeat)
            costs[queues, event] = spent / queues
            yield context.row(f"{queues} {event}", spent, "ms", goal=25.0 if queues == QUEUES else None)
    for event in ("leave", "join"):
        ratio = costs[QUEUES, event] / costs[1_000, event]
        yield context.row(f"linear {event}", ratio, "cost of a queue at 10^6 / at 10^3", goal=1.0)
    tracemalloc.start()
    _rebalance(owners, before, after)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    yield context.row("1000000 memory", peak, "MB", goal=250.0)


def _rebalance(owners: Ints, before: list[str], after: list[str]) -> tuple[Ints, Ints, Ints]:
    """Return the queues that change, from whom (−1: a member that left) and to whom, as numbers in `after`."""
    number = {member: index for index, member in enumerate(after)}
    owners = np.array([number.get(member, -1) for member in before])[owners]
    assigned = assign_equal(owners, len(after))
    changed = np.flatnonzero(assigned != owners)
    return changed, owners[changed], assigned[changed]
