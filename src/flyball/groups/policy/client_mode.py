"""Client mode: every member computes its own queues, from a view of the group that it fetches from a replica.

This is how RocketMQ's clients rebalance, and it is here to be compared with: nobody grants anything, so that
members with different views read the same queue, or leave one to each other. A member sends its heartbeats to
all replicas, fetches the view of one of them every now and then, sorts members and queues, and applies a
strategy that needs no assignment before. It takes and drops queues at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from flyball.errors import InvalidValue
from flyball.groups.policy.group import Queue
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import Subscription
from flyball.groups.policy.strategies import plan_group

COORDINATED = ("sticky", "load")
"""Strategies that need the assignment before, which no client has."""


@dataclass(frozen=True, slots=True)
class View:
    """The members of a group and the number of queues of each topic, as one replica knows them."""

    members: Mapping[str, Subscription] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replica:
    """A view, and when each member was last heard of."""

    view: View = field(default_factory=View)
    heard_s: Mapping[str, float] = field(default_factory=dict)


def note_heartbeat(
    replica: Replica, member: str, subscription: Subscription, topics: Mapping[str, int], now_s: float
) -> Replica:
    """The replica after a heartbeat of a member, which names the numbers of queues that it knows."""
    view = replica.view
    known = {**view.topics, **{topic: max(n, view.topics.get(topic, 0)) for topic, n in topics.items()}}
    if view.members.get(member) != subscription or known != view.topics:
        view = View(dict(sorted({**view.members, member: subscription}.items())), known)
    return Replica(view, {**replica.heard_s, member: now_s})


def forget_silent(replica: Replica, timeout_s: float, now_s: float) -> Replica:
    """The replica without members that were silent for `timeout_s`."""
    silent = {member for member, heard_s in replica.heard_s.items() if now_s - heard_s >= timeout_s}
    return _without(replica, silent)


def forget_member(replica: Replica, member: str) -> Replica:
    """The replica without a member that said good-bye."""
    return _without(replica, {member})


def _without(replica: Replica, members: Set[str]) -> Replica:
    if not members & replica.heard_s.keys():
        return replica
    return Replica(
        replace(replica.view, members={m: s for m, s in replica.view.members.items() if m not in members}),
        {member: heard_s for member, heard_s in replica.heard_s.items() if member not in members},
    )


def replica_lag_s(lag_s: float, number: int, count: int) -> float:
    """How old what a replica shows is: from nothing to twice `lag_s`, each replica by its own lag.

    >>> [replica_lag_s(1.0, number, 3) for number in range(3)], replica_lag_s(1.0, 0, 1)
    ([0.0, 1.0, 2.0], 1.0)
    """
    return lag_s if count == 1 else 2.0 * lag_s * number / (count - 1)


def choose_queues(view: View, member: str, rules: GroupRules) -> frozenset[Queue]:
    """The queues that a member reads by what it sees; none if it does not see itself.

    >>> both = View({"a": Subscription(frozenset({"t"})), "b": Subscription(frozenset({"t"}))}, {"t": 4})
    >>> sorted(choose_queues(both, "a", GroupRules(strategy="averagely")))
    [('t', 0), ('t', 1)]
    """
    if rules.strategy in COORDINATED:
        raise InvalidValue(
            f"strategy must need no assignment before, such as 'averagely', in client mode, got {rules.strategy!r}"
        )
    if member not in view.members:
        return frozenset()
    return frozenset(plan_group(view.members, view.topics, {}, rules).plan.assignment.get(member, ()))
