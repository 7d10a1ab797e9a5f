"""Sticky: balance first, then racks, then as little movement as possible. The default.

Ranked goals, each reached exactly for queues of equal weight:

1. the best loads: sorted from the largest, the smallest list that subscriptions allow;
2. the fewest queues with a member outside their racks, where `rack_aware`;
3. as many queues as possible stay where they are.

Free queues go in ascending order to the least loaded member that reads them, ties by id. The result depends on
what the group is, not on the order in which anything is listed, and a group that did not change keeps its plan.
"""

from __future__ import annotations

import numpy as np

from flyball.errors import InvalidValue
from flyball.groups.policy.equal import assign_equal
from flyball.groups.policy.group import Claims, Group, Queue, owners_by_claim
from flyball.groups.policy.level_fill import Ints
from flyball.groups.policy.mixed import Racks, assign_mixed
from flyball.groups.policy.plan import Plan, make_plan, name_owners, number_owners
from flyball.groups.policy.quick import assign_quickly

_NO_CLAIMS = Claims()


def assign_sticky(
    group: Group, claims: Claims = _NO_CLAIMS, *, rack_aware: bool = False, quick: bool = False
) -> Plan[Queue]:
    """Assign every queue that some member reads.

    `quick`: where members read different topics, a valid plan in a fraction of the time (`quick.py`), in which
    racks do not count and which the exact one may follow.
    """
    if not group.members:
        raise InvalidValue("members must name at least one member, got none")
    members = sorted(group.members)
    queues = group.queues()
    by_claim = owners_by_claim(group, claims)
    owners = number_owners(queues, by_claim, members)
    assigned = _assign(group, queues, members, owners, rack_aware=rack_aware and not quick, quick=quick)
    return make_plan(name_owners(queues, assigned, members), claims.queues, by_claim, len(queues))


def _assign(
    group: Group, queues: list[Queue], members: list[str], owners: Ints, *, rack_aware: bool, quick: bool
) -> Ints:
    if not queues:
        return owners
    subscriptions = [group.members[member].topics & group.topics.keys() for member in members]
    if not rack_aware and all(topics == subscriptions[0] for topics in subscriptions):
        wanted = np.array([topic in subscriptions[0] for topic, _ in queues])
        assigned = np.full(len(queues), -1)
        if wanted.any():
            assigned[wanted] = assign_equal(owners[wanted], len(members))
        return assigned
    topics = sorted(group.topics)
    number = {topic: index for index, topic in enumerate(topics)}
    reads = np.zeros((len(topics), len(members)), bool)
    for member, mine in enumerate(subscriptions):
        reads[[number[topic] for topic in mine], member] = True
    topic_of = np.array([number[topic] for topic, _ in queues])
    if quick:
        return assign_quickly(topic_of, owners, reads)
    return assign_mixed(topic_of, owners, reads, _racks(group, queues, members) if rack_aware else None)


def _racks(group: Group, queues: list[Queue], members: list[str]) -> Racks:
    """A queue without racks fits every member; a member without a rack fits no queue that has some."""
    sets: dict[frozenset[str], int] = {}
    rack_set = [sets.setdefault(group.racks.get(queue, frozenset()), len(sets)) for queue in queues]
    mismatch = [[bool(racks) and group.members[member].rack not in racks for member in members] for racks in sets]
    return Racks(np.array(rack_set), np.array(mismatch))
