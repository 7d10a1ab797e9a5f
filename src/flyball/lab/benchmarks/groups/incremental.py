"""The same events one at a time, from the plan before."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from statistics import median

from flyball.groups.policy.incremental import EqualGroup
from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.groups.equal import MEMBERS, QUEUES


def cases(context: BenchContext) -> Iterator[Row]:
    names = [f"m{index:05d}" for index in range(MEMBERS)]
    owners = [names[queue % MEMBERS] for queue in range(QUEUES)]
    group = EqualGroup(owners, names)
    spent: dict[str, list[float]] = {"leave": [], "join": []}
    draw = random.Random(context.seed)
    for _ in range(80):
        member = draw.choice(names)
        for event, act in (("leave", group.leave), ("join", group.join)):
            start = time.process_time_ns()
            act(member)
            spent[event].append((time.process_time_ns() - start) / 1e6)
    for event, times in spent.items():
        yield context.row(f"1000000 {event} incremental", median(times), "ms", goal=0.2)
