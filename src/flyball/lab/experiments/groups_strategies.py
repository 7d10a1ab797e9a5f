"""Groups: the strategies by balance, stickiness and time, and the worked example of the rebalancing report.

A group of one topic on four brokers lives through random changes of its members, one to three at a time. Every
strategy sees the same changes and starts each time from its own plan before. Balance degree is the standard
deviation of the members' numbers of queues; stickiness the share of the queues that stay; moves are queues that
pass between live members, beside the fewest with which the best balance could be had from the same plan before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from flyball.groups.policy.averagely import allocate_averagely
from flyball.groups.policy.averagely_by_circle import allocate_by_circle
from flyball.groups.policy.broker_queue import Allocate, BrokerQueue, allocate_by_topic
from flyball.groups.policy.consistent_hash import allocate_by_hash
from flyball.groups.policy.group import Claims, Group, Member
from flyball.groups.policy.machine_room_nearby import allocate_nearby
from flyball.groups.policy.plan import balance_degree
from flyball.groups.policy.sticky import assign_sticky
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import new_figure

Plan = dict[str, list[BrokerQueue]]
Strategy = Callable[[list[BrokerQueue], list[str], Plan], Plan]
_BROKERS = ("r1-a", "r1-b", "r2-a", "r2-b")


def _without_memory(allocate: Allocate) -> Strategy:
    return lambda queues, members, before: allocate_by_topic(queues, members, allocate)  # noqa: ARG005


def _sticky(queues: list[BrokerQueue], members: list[str], before: Plan) -> Plan:
    topics: dict[str, list[int]] = {}
    for queue in queues:
        topics.setdefault(queue.broker, []).append(queue.number)
    group = Group(topics, {name: Member(frozenset(topics)) for name in members})
    claims = Claims({name: [(queue.broker, queue.number) for queue in given] for name, given in before.items()})
    return {
        name: [BrokerQueue("t", broker, number) for broker, number in given]
        for name, given in assign_sticky(group, claims).assignment.items()
    }


STRATEGIES: dict[str, Strategy] = {
    "sticky": _sticky,
    "averagely": _without_memory(allocate_averagely),
    "averagely-by-circle": _without_memory(allocate_by_circle),
    "consistent-hash": _without_memory(allocate_by_hash),
    "machine-room-nearby": _without_memory(partial(allocate_nearby, inner=allocate_averagely)),
}


@dataclass
class _Figures:
    balance: list[float] = field(default_factory=list)
    stickiness: list[float] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    fewest: list[int] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)


def run(context: ExperimentContext) -> Report:
    changes = 60 if context.quick else 400
    queues = [BrokerQueue("t", broker, number) for broker in _BROKERS for number in range(64)]
    figures = _live_through(queues, _memberships(context.seed, changes))
    rows = [
        (
            name,
            fmean(found.balance),
            max(found.balance),
            fmean(found.stickiness),
            sum(found.moves),
            sum(found.fewest),
            fmean(found.milliseconds),
        )
        for name, found in figures.items()
    ]
    for name, balance, _, stickiness, moves, fewest, spent in rows:
        context.note(
            f"{name}: balance {balance:.2f}, stays {stickiness:.3f}, {moves} moves of {fewest}, {spent:.2f} ms"
        )
    first, second = worked_example()
    header = ("strategy", "balance degree", "at worst", "stickiness", "moves", "fewest possible", "time, ms")
    return Report(
        title="Strategies of a consumer group",
        body=[
            f"The worked example of the report, queues 1 to 8: three members get {_text(first)}; after C1 left, "
            f"the others have {_text(second)}. All that C0 and C2 had stays.",
            f"{len(queues)} queues on four brokers in two rooms, {changes} random changes of two to 16 members.",
            Table(header, rows),
            _picture(figures),
            "`sticky` has the balance of `averagely` and moves what has to move, no more. `averagely` and "
            "`averagely-by-circle` reach the same balance with many times as many moves. `consistent-hash` moves "
            "little and leaves the balance to chance: from its plans, the best balance would take more moves than "
            "it makes. `machine-room-nearby` keeps queues in their room and is balanced only where the rooms are. "
            "Times are of this machine.",
        ],
        data={
            "worked_example": {"three": first, "two": second},
            "strategies": {
                name: dict(
                    zip(("balance", "worst_balance", "stickiness", "moves", "fewest", "ms"), row, strict=True)
                )
                for name, *row in rows
            },
        },
    )


def worked_example() -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the queues of three members, and of the two that remain."""
    topics = {"t": list(range(1, 9))}
    plans: list[dict[str, list[int]]] = []
    claims = Claims()
    for names in (("C0", "C1", "C2"), ("C0", "C2")):
        found = assign_sticky(Group(topics, {name: Member(frozenset("t")) for name in names}), claims).assignment
        claims = Claims(found)
        plans.append({name: [number for _, number in given] for name, given in found.items()})
    return plans[0], plans[1]


def _memberships(seed: int, changes: int) -> list[list[str]]:
    """Return the members after each change; the first list is that before all changes."""
    draw = random.Random(seed)
    everybody = [f"r{1 + number % 2}-m{number:02d}" for number in range(16)]
    present = set(everybody[:8])
    result = [sorted(present)]
    while len(result) <= changes:
        after = present ^ set(draw.sample(everybody, draw.randint(1, 3)))
        if len(after) >= 2:
            present = after
            result.append(sorted(present))
    return result


def _live_through(queues: list[BrokerQueue], memberships: list[list[str]]) -> dict[str, _Figures]:
    figures = {}
    for name, assign in STRATEGIES.items():
        found = figures[name] = _Figures()
        before = assign(queues, memberships[0], {})
        for members in memberships[1:]:
            start = time.perf_counter()
            after = assign(queues, members, before)
            found.milliseconds.append(1e3 * (time.perf_counter() - start))
            owners = {queue: member for member, given in before.items() for queue in given}
            found.balance.append(balance_degree([len(given) for given in after.values()]))
            found.stickiness.append(_stayed(after, owners) / len(queues))
            found.moves.append(_moves(after, owners))
            found.fewest.append(_moves(_sticky(queues, members, before), owners))
            before = after
    return figures


def _stayed(plan: Plan, owners: Mapping[BrokerQueue, str]) -> int:
    return sum(owners.get(queue) == member for member, given in plan.items() for queue in given)


def _moves(plan: Plan, owners: Mapping[BrokerQueue, str]) -> int:
    return sum(owners.get(q) in plan and owners[q] != member for member, given in plan.items() for q in given)


def _picture(figures: Mapping[str, _Figures]) -> Picture:
    figure, axes = new_figure(rows=2, row_height_in=2.6)
    for index, (name, found) in enumerate(figures.items()):
        shown = slice(0, 60)
        axes[0].plot(found.balance[shown], label=name, color=f"C{index}", linewidth=0.9)
        axes[1].plot(found.stickiness[shown], color=f"C{index}", linewidth=0.9)
    axes[0].set_ylabel("balance degree")
    axes[0].legend(fontsize=8, ncols=3)
    axes[1].set_ylabel("stickiness")
    axes[1].set_xlabel("change of the membership")
    return Picture("runs", "Balance degree and stickiness over the first 60 changes", figure)


def _text(plan: Mapping[str, Any]) -> str:
    return ", ".join(f"{member} {{{', '.join(map(str, given))}}}" for member, given in plan.items())
