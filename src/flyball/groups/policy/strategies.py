"""Make the plan of a group by the strategy that its rules name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flyball.groups.policy.averagely import allocate_averagely
from flyball.groups.policy.averagely_by_circle import allocate_by_circle
from flyball.groups.policy.broker_queue import Allocate, BrokerQueue, sort_members, sort_queues
from flyball.groups.policy.consistent_hash import allocate_by_hash
from flyball.groups.policy.group import Claims, Group, Member, Queue, owners_by_claim
from flyball.groups.policy.load_estimates import LoadState
from flyball.groups.policy.load_loop import LoadOptions, LoadReason, decide_loads
from flyball.groups.policy.machine_room import allocate_by_machine_room
from flyball.groups.policy.machine_room_nearby import allocate_nearby
from flyball.groups.policy.plan import Plan, make_plan
from flyball.groups.policy.reports import Report
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import Subscription
from flyball.groups.policy.sticky import assign_sticky


@dataclass(frozen=True, slots=True)
class StrategyPlan:
    """`fewest_moves`: what balance alone would need, None where loads decide.

    `load`: what the strategy `load` remembers; `reasons`: what it says.
    """

    plan: Plan[Queue]
    fewest_moves: int | None
    load: LoadState = field(default_factory=LoadState)
    reasons: tuple[LoadReason, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """For the strategy `load`: what members report, what was learned of it, and the time."""

    reports: Mapping[str, Report]
    load: LoadState = field(default_factory=LoadState)
    now_s: float = 0.0


def make_group(
    members: Mapping[str, Subscription], topics: Mapping[str, int], racks: Mapping[str, Any] | None = None
) -> Group:
    """The group as strategies see it; `racks` has a list for the queues 0, 1, 2, … of a topic."""
    return Group(
        topics={topic: range(count) for topic, count in topics.items()},
        members={name: Member(member.topics, member.rack) for name, member in members.items()},
        racks={
            (topic, number): frozenset([rack])
            for topic, of_topic in (racks or {}).items()
            for number, rack in enumerate(of_topic)
        },
    )


def plan_group(
    members: Mapping[str, Subscription],
    topics: Mapping[str, int],
    targets: Mapping[Queue, str],
    rules: GroupRules,
    measured: Measured | None = None,
) -> StrategyPlan:
    """Plan for at least one member. `targets`: the plan before; nothing `measured`: all queues weigh alike."""
    group = make_group(members, topics, rules.racks)
    claims = Claims(_queues_by_member(targets))
    if rules.strategy == "load":
        unmeasured = {name: Report(dict.fromkeys(member.topics)) for name, member in members.items()}
        return _plan_by_load(group, claims, rules, measured or Measured(unmeasured))
    plan = assign_sticky(group, claims)
    fewest = plan.moves
    if rules.strategy != "sticky":
        plan = make_plan(
            _allocate(members, group, rules), claims.queues, owners_by_claim(group, claims), _size(group)
        )
    elif rules.racks:
        plan = assign_sticky(group, claims, rack_aware=True)
    return StrategyPlan(plan, fewest)


def load_options(rules: GroupRules) -> LoadOptions:
    """The options of the strategy `load`: a decision at each interval of the group."""
    options = LoadOptions(interval_s=rules.rebalance_s)
    return replace(options, limits=replace(options.limits, band=rules.band, max_moves=rules.max_moves))


def _plan_by_load(group: Group, claims: Claims, rules: GroupRules, measured: Measured) -> StrategyPlan:
    by_claim = owners_by_claim(group, claims)
    load, answer = decide_loads(
        measured.load,
        {name: measured.reports[name] for name in group.members},
        group.queues(),
        by_claim,
        load_options(rules),
        measured.now_s,
    )
    assignment: dict[str, list[Queue]] = {name: [] for name in sorted(group.members)}
    for queue, owner in sorted(answer.owners.items()):
        assignment[owner].append(queue)
    plan = make_plan(assignment, claims.queues, by_claim, _size(group))
    return StrategyPlan(plan, None, load, answer.reasons)


def _allocate(members: Mapping[str, Subscription], group: Group, rules: GroupRules) -> dict[str, list[Queue]]:
    """Allocate each topic among the members that read it."""
    result: dict[str, list[Queue]] = {name: [] for name in sort_members(members)}
    if rules.strategy == "by-config":
        _allocate_lists(members, group, result)
        return result
    allocate = _strategy(rules)
    for topic in sorted(group.topics):
        readers = [name for name in result if topic in members[name].topics]
        brokers = rules.brokers.get(topic, ())
        queues = sort_queues(
            BrokerQueue(topic, brokers[number] if number < len(brokers) else "", number)
            for number in group.topics[topic]
        )
        if readers and queues:
            for name, given in allocate(queues, readers).items():
                result[name] += [(queue.topic, queue.number) for queue in given]
    return result


def _allocate_lists(members: Mapping[str, Subscription], group: Group, result: dict[str, list[Queue]]) -> None:
    """Every member gets what it lists and what exists; of several that list a queue the first has it."""
    free = set(group.queues())
    for name in result:
        mine = sorted(
            queue for queue in members[name].queues if queue in free and queue[0] in members[name].topics
        )
        free.difference_update(mine)
        result[name] = mine


def _strategy(rules: GroupRules) -> Allocate:
    if rules.strategy == "by-machine-room":
        return partial(allocate_by_machine_room, rooms=frozenset(rules.rooms))
    if rules.strategy == "machine-room-nearby":
        return partial(allocate_nearby, inner=_plain_strategy(rules.inner, rules.virtual_nodes))
    return _plain_strategy(rules.strategy, rules.virtual_nodes)


def _plain_strategy(name: str, virtual_nodes: int) -> Allocate:
    if name == "averagely":
        return allocate_averagely
    if name == "averagely-by-circle":
        return allocate_by_circle
    return partial(allocate_by_hash, virtual_nodes=virtual_nodes)


def _queues_by_member(targets: Mapping[Queue, str]) -> dict[str, list[Queue]]:
    by_member: dict[str, list[Queue]] = {}
    for queue in sorted(targets):
        by_member.setdefault(targets[queue], []).append(queue)
    return by_member


def _size(group: Group) -> int:
    return sum(len(numbers) for numbers in group.topics.values())
