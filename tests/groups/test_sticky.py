"""The sticky strategy: worked examples, an exact solver as the judge, and known defects of others."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from flyball.errors import InvalidValue
from flyball.groups.policy.equal import assign_equal
from flyball.groups.policy.group import Claims, Group, Member, Queue, owners_by_claim
from flyball.groups.policy.incremental import EqualGroup
from flyball.groups.policy.mixed import assign_mixed
from flyball.groups.policy.plan import Plan
from flyball.groups.policy.sticky import assign_sticky


def _group(topics: Mapping[str, int], members: Mapping[str, str], racks: Mapping[str, str] | None = None) -> Group:
    return Group(
        {topic: range(count) for topic, count in topics.items()},
        {name: Member(frozenset(read), (racks or {}).get(name)) for name, read in members.items()},
    )


def _numbers(plan: Plan[Queue]) -> dict[str, list[int]]:
    return {member: [number for _, number in queues] for member, queues in plan.assignment.items()}


def test_the_worked_example_of_the_paper() -> None:
    topics = {"t": [1, 2, 3, 4, 5, 6, 7, 8]}
    three = Group(topics, {name: Member(frozenset("t")) for name in ("C0", "C1", "C2")})
    first = assign_sticky(three)
    assert _numbers(first) == {"C0": [1, 4, 7], "C1": [2, 5, 8], "C2": [3, 6]}
    two = Group(topics, {name: Member(frozenset("t")) for name in ("C0", "C2")})
    second = assign_sticky(two, Claims(first.assignment))
    assert _numbers(second) == {"C0": [1, 4, 5, 7], "C2": [2, 3, 6, 8]}
    assert second.revoke == {}
    assert second.assign == {"C0": [("t", 5)], "C2": [("t", 2), ("t", 8)]}
    assert second.stickiness == 5 / 8
    assert second.moves == 0


def test_two_members_that_join_at_once_both_get_their_share() -> None:
    before = assign_sticky(_group({"t": 8}, {"a": "t"}))
    after = assign_sticky(_group({"t": 8}, {"a": "t", "b": "t", "c": "t"}), Claims(before.assignment))
    assert sorted(map(len, after.assignment.values())) == [2, 3, 3]
    assert after.moves == 5


def test_a_member_swapped_for_another_leaves_no_queue_without_an_owner() -> None:
    before = assign_sticky(_group({"t": 8}, {"a": "t", "b": "t"}))
    after = assign_sticky(_group({"t": 8}, {"a": "t", "c": "t"}), Claims(before.assignment))
    assert {number for given in _numbers(after).values() for number in given} == set(range(8))
    assert after.assignment["a"] == before.assignment["a"]


def test_a_queue_that_vanished_is_not_mistaken_for_another_of_the_same_number() -> None:
    before = {"a": [("broker1", 0), ("broker2", 0)], "b": [("broker1", 1), ("broker2", 1)]}
    members = {name: Member(frozenset({"broker1", "broker2"})) for name in ("a", "b")}
    plan = assign_sticky(Group({"broker1": [0, 1], "broker2": [1]}, members), Claims(before))
    given = [queue for queues in plan.assignment.values() for queue in queues]
    assert sorted(given) == [("broker1", 0), ("broker1", 1), ("broker2", 1)]
    assert plan.revoke == {"a": [("broker2", 0)]}


def test_of_several_claims_the_highest_generation_holds_and_a_tie_is_nobodys() -> None:
    group = _group({"t": 3}, {"a": "t", "b": "t", "c": "t"})
    claims = Claims(
        {"a": [("t", 0), ("t", 1), ("t", 1)], "b": [("t", 0), ("t", 1), ("t", 7)], "gone": [("t", 2)]},
        {"a": 4, "b": 4, "c": 3, "gone": 9},
    )
    assert owners_by_claim(group, claims) == {}
    assert owners_by_claim(group, Claims(claims.queues, {"b": 0})) == {("t", 0): "b", ("t", 1): "b"}


def test_nobody_owns_what_it_no_longer_reads() -> None:
    group = Group({"t": [0], "u": [0]}, {"a": Member(frozenset("u")), "b": Member(frozenset("tu"))})
    assert owners_by_claim(group, Claims({"a": [("t", 0), ("u", 0)]})) == {("u", 0): "a"}


def test_a_topic_that_nobody_reads_stays_unassigned() -> None:
    plan = assign_sticky(_group({"t": 2, "u": 2}, {"a": "t", "b": "t"}))
    assert plan.assignment == {"a": [("t", 0)], "b": [("t", 1)]}
    mixed = assign_sticky(_group({"t": 2, "u": 2, "v": 1}, {"a": "tv", "b": "t"}))
    assert sorted(queue for given in mixed.assignment.values() for queue in given) == [
        ("t", 0),
        ("t", 1),
        ("v", 0),
    ]


def test_a_group_without_members_is_refused() -> None:
    with pytest.raises(InvalidValue, match="members must name at least one member, got none"):
        assign_sticky(Group({"t": [0]}, {}))


# --- the exact solver judges --------------------------------------------------------------------------------


def _random_case(seed: int, *, mixed: bool, racks: bool) -> tuple[Group, Claims]:
    draw = random.Random(seed)
    names = [f"m{index}" for index in range(draw.randint(1, 5))]
    topics = {f"t{index}": list(range(draw.randint(0, 5))) for index in range(draw.randint(1, 4))}
    members = {
        name: Member(
            frozenset(topic for topic in topics if not mixed or draw.random() < 0.6),
            draw.choice(["r1", "r2", None]) if racks else None,
        )
        for name in names
    }
    queues = [(topic, number) for topic, numbers in topics.items() for number in numbers]
    where = {queue: frozenset(draw.sample(["r1", "r2", "r3"], draw.randint(0, 2))) for queue in queues}
    claims = Claims(
        {
            name: [queue for queue in [*queues, ("t0", 99)] if draw.random() < draw.choice([0.1, 0.5, 0.9])]
            for name in [*names, "gone"]
        },
        {name: draw.randint(0, 5) for name in names},
    )
    return Group(topics, members, where if racks else {}), claims


def _judge(group: Group, owners: Mapping[Queue, str], *, racks: bool) -> tuple[list[int], int, int]:
    """The best sorted loads, then the fewest mismatches, then the most that stays: by an integer programme."""
    members = sorted(group.members)
    readable = [q for q in group.queues() if any(q[0] in group.members[name].topics for name in members)]
    pairs = [(q, m) for q, m in product(readable, members) if q[0] in group.members[m].topics]
    if not pairs:
        return [0] * len(members), 0, 0
    count = len(readable)
    places = list(product(members, range(count)))
    mismatch_cost, load_cost = count + 1, (count + 1) ** 2
    cost = [mismatch_cost * _mismatched(group, q, m, racks=racks) - (owners.get(q) == m) for q, m in pairs] + [
        load_cost * (2 * level + 1) for _, level in places
    ]
    rows, low = [], []
    for queue in readable:
        rows.append([float(q == queue) for q, _ in pairs] + [0.0] * len(places))
        low.append(1.0)
    for member in members:
        rows.append([float(m == member) for _, m in pairs] + [-float(m == member) for m, _ in places])
        low.append(0.0)
    found = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), low, low),
        integrality=np.ones(len(cost), np.int64),
        bounds=Bounds(0, 1),
    )
    assert found.success
    chosen = [pair for pair, value in zip(pairs, found.x, strict=False) if value > 0.5]
    return _figures(group, owners, chosen, racks=racks)


def _mismatched(group: Group, queue: Queue, member: str, *, racks: bool) -> bool:
    where = group.racks.get(queue, frozenset())
    return racks and bool(where) and group.members[member].rack not in where


def _figures(
    group: Group, owners: Mapping[Queue, str], chosen: Sequence[tuple[Queue, str]], *, racks: bool
) -> tuple[list[int], int, int]:
    loads = sorted((sum(m == member for _, m in chosen) for member in group.members), reverse=True)
    mismatches = sum(_mismatched(group, q, m, racks=racks) for q, m in chosen)
    return loads, mismatches, sum(owners.get(q) == m for q, m in chosen)


@pytest.mark.parametrize(("mixed", "racks"), [(False, False), (True, False), (False, True), (True, True)])
def test_no_plan_is_better_than_ours(mixed: bool, racks: bool) -> None:
    for seed in range(60):
        group, claims = _random_case(seed, mixed=mixed, racks=racks)
        plan = assign_sticky(group, claims, rack_aware=racks)
        chosen = [(queue, member) for member, given in plan.assignment.items() for queue in given]
        assert len({queue for queue, _ in chosen}) == len(chosen)
        assert all(queue[0] in group.members[member].topics for queue, member in chosen)
        owners = owners_by_claim(group, claims)
        assert _figures(group, owners, chosen, racks=racks) == _judge(group, owners, racks=racks), seed


@pytest.mark.parametrize("racks", [False, True])
def test_a_plan_does_not_depend_on_the_order_and_an_unchanged_group_keeps_it(racks: bool) -> None:
    for seed in range(150):
        group, claims = _random_case(seed, mixed=seed % 2 == 0, racks=racks)
        plan = assign_sticky(group, claims, rack_aware=racks)
        draw = random.Random(seed)
        shuffled = Group(
            {
                t: draw.sample(list(ids), len(ids))
                for t, ids in draw.sample(list(group.topics.items()), len(group.topics))
            },
            dict(draw.sample(list(group.members.items()), len(group.members))),
            group.racks,
        )
        again = assign_sticky(
            shuffled,
            Claims({name: claims.queues[name][::-1] for name in sorted(claims.queues)[::-1]}, claims.generations),
            rack_aware=racks,
        )
        assert (again.assignment, again.revoke, again.assign) == (plan.assignment, plan.revoke, plan.assign)
        repeated = assign_sticky(group, Claims(plan.assignment), rack_aware=racks)
        assert repeated.assignment == plan.assignment
        assert (repeated.moves, repeated.revoke, repeated.assign) == (0, {}, {})


def test_both_algorithms_agree_where_both_apply() -> None:
    random_state = np.random.default_rng(3)
    for _ in range(50):
        members, queues = int(random_state.integers(1, 30)), int(random_state.integers(1, 400))
        owners = random_state.integers(-1, members, queues)
        topics = random_state.integers(0, 5, queues)
        one, other = assign_equal(owners, members), assign_mixed(topics, owners, np.ones((5, members), bool))
        assert sorted(np.bincount(one, minlength=members)) == sorted(np.bincount(other, minlength=members))
        assert np.sum(one == owners) == np.sum(other == owners)


def test_events_one_by_one_give_the_plan_of_the_whole() -> None:
    draw = random.Random(5)
    names = [f"m{index:02d}" for index in range(20)]
    for _ in range(30):
        present = draw.sample(names, draw.randint(1, 10))
        count = draw.choice([3, 40, 400])
        group = EqualGroup([draw.choice([*names, None]) for _ in range(count)], present)
        for _ in range(20):
            before = group.assignment
            if len(present) > 1 and draw.random() < 0.5:
                present.remove(leaver := draw.choice(present))
                moves = group.leave(leaver)
            else:
                absent = [name for name in names if name not in present]
                if not absent:
                    continue
                present.append(joiner := draw.choice(absent))
                moves = group.join(joiner)
            order = sorted(present)
            owners = np.full(count, -1)
            for member, queues in before.items():
                if member in present:
                    owners[queues] = order.index(member)
            whole = assign_equal(owners, len(order))
            assert group.assignment == {m: np.flatnonzero(whole == i).tolist() for i, m in enumerate(order)}
            was = {queue: member for member, queues in before.items() for queue in queues}
            now = {queue: member for member, queues in group.assignment.items() for queue in queues}
            assert {(m.queue, m.source, m.target) for m in moves} == {
                (queue, was[queue], member) for queue, member in now.items() if was[queue] != member
            }
