"""What would change in a group if members came or went, a topic grew, or another strategy was used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from flyball.errors import InvalidValue
from flyball.groups.policy.group import Queue
from flyball.groups.policy.plan import Plan
from flyball.groups.policy.reports import Report
from flyball.groups.policy.state import GroupState, Subscription
from flyball.groups.policy.strategies import Measured, plan_group


@dataclass(frozen=True, slots=True)
class Changes:
    """`join`: the topics of each new member, none for all of the group. `queues`: new numbers by topic."""

    leave: Collection[str] = ()
    join: Mapping[str, Collection[str]] = field(default_factory=dict)
    queues: Mapping[str, int] = field(default_factory=dict)
    strategy: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A queue that changes hands; `source` None: nobody had it, `target` None: nobody would."""

    queue: Queue
    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """The plan that would be made, and what changes from the present one."""

    plan: Plan[Queue]
    fewest_moves: int | None
    moves: tuple[Move, ...]


def foresee(state: GroupState, changes: Changes, reports: Mapping[str, Report], now_s: float = 0.0) -> Outlook:
    """Plan for the changed group; nothing is done. `reports` of its members are for the strategy `load`."""
    members = _change_members(state, changes)
    topics = _change_topics(state, changes)
    rules = state.rules if changes.strategy is None else replace(state.rules, strategy=changes.strategy)
    known = {name: reports.get(name, Report(dict.fromkeys(member.topics))) for name, member in members.items()}
    made = plan_group(members, topics, state.targets, rules, Measured(known, state.load, now_s))
    targets = {queue: name for name, queues in made.plan.assignment.items() for queue in queues}
    moves = tuple(
        Move(queue, state.targets.get(queue), targets.get(queue))
        for queue in sorted(state.targets.keys() | targets.keys())
        if state.targets.get(queue) != targets.get(queue)
    )
    return Outlook(made.plan, made.fewest_moves, moves)


def _change_members(state: GroupState, changes: Changes) -> dict[str, Subscription]:
    members = dict(state.members)
    for name in changes.leave:
        if members.pop(name, None) is None:
            raise InvalidValue(f"there is no member {name!r}: the group has {_some(state.members)}")
    for name, topics in changes.join.items():
        if name in members:
            raise InvalidValue(f"member {name!r} is in the group already")
        unknown = sorted(set(topics) - state.topics.keys())
        if unknown:
            raise InvalidValue(f"there is no topic {unknown[0]!r}: the group has {_some(state.topics)}")
        members[name] = Subscription(frozenset(topics or state.topics))
    if not members:
        raise InvalidValue("nobody would be left to read: keep at least one member")
    return members


def _change_topics(state: GroupState, changes: Changes) -> dict[str, int]:
    for topic, count in changes.queues.items():
        if topic not in state.topics:
            raise InvalidValue(f"there is no topic {topic!r}: the group has {_some(state.topics)}")
        if count < 0:
            raise InvalidValue(f"the number of queues must be an integer >= 0, got {count}")
    return {**state.topics, **changes.queues}


def _some(names: Collection[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:10]) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "") or "none"
