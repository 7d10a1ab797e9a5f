"""The proof that a plan is the best: beside the cuts that find the best loads, and in what it allows to skip."""

from __future__ import annotations

import random

import numpy as np

from flyball.groups.policy.best_loads import most_kept, read_load_blocks
from flyball.groups.policy.group import Claims, Group, Member
from flyball.groups.policy.level_fill import Ints
from flyball.groups.policy.load_blocks import Bools, find_load_blocks
from flyball.groups.policy.mixed import assign_mixed
from flyball.groups.policy.sticky import assign_sticky


def _random_classes(seed: int) -> tuple[Ints, Bools]:
    draw = np.random.default_rng(seed)
    classes, members = int(draw.integers(1, 12)), int(draw.integers(1, 15))
    readers = draw.random((classes, members)) < draw.choice([0.15, 0.5, 0.9])
    readers[np.arange(classes), draw.integers(0, members, classes)] = True
    return np.repeat(np.arange(classes), draw.integers(1, 20, classes)), readers


def _amounts(class_of: Ints, owners: Ints, readers: Bools) -> Ints:
    amounts = np.zeros(readers.shape, np.int64)
    np.add.at(amounts, (class_of, owners), 1)
    return amounts


def test_blocks_read_from_a_best_plan_are_those_that_cuts_find() -> None:
    for seed in range(300):
        class_of, readers = _random_classes(seed)
        plan = assign_mixed(class_of, np.full(class_of.size, -1), readers)
        amounts = _amounts(class_of, plan, readers)
        read, found = read_load_blocks(amounts, readers), find_load_blocks(np.bincount(class_of), readers)
        assert read is not None
        active = readers.any(axis=0)
        assert np.array_equal(read.high[active], found.high[active])
        assert np.array_equal(read.allowed, found.allowed)
        assert most_kept(amounts, amounts.sum(axis=0), read) == class_of.size


def test_a_plan_with_worse_loads_is_never_taken_for_the_best() -> None:
    rejected = 0
    for seed in range(300):
        class_of, readers = _random_classes(seed)
        draw = np.random.default_rng(seed)
        other = np.array([draw.choice(np.flatnonzero(readers[of])) for of in class_of])
        amounts = _amounts(class_of, other, readers)
        best = np.bincount(assign_mixed(class_of, other, readers), minlength=readers.shape[1])
        as_good = sorted(amounts.sum(axis=0)) == sorted(best)
        assert (read_load_blocks(amounts, readers) is not None) == as_good
        rejected += not as_good
    assert rejected > 100


def test_free_queues_go_in_ascending_order_to_the_least_loaded_that_read_them() -> None:
    """The rule by which anybody can compute the plan, wherever it leads to the best loads."""
    agreed = 0
    for seed in range(200):
        draw = random.Random(seed)
        topics = {f"t{index}": range(draw.randint(1, 6)) for index in range(4)}
        members = {f"m{index}": Member(frozenset(draw.sample(sorted(topics), 3))) for index in range(5)}
        members["m9"] = Member(frozenset(topics))
        group = Group(topics, members)
        queues = group.queues()
        claims = {
            name: [q for q in queues if q[0] in members[name].topics and draw.random() < 0.1] for name in members
        }
        owners = {queue: name for name, given in sorted(claims.items()) for queue in given}
        claims = {name: [queue for queue in queues if owners.get(queue) == name] for name in members}
        plan = {name: list(given) for name, given in claims.items()}
        for queue in queues:
            if queue not in owners:
                readers = [name for name in sorted(members) if queue[0] in members[name].topics]
                plan[min(readers, key=lambda name: len(plan[name]))].append(queue)
        found = assign_sticky(group, Claims(claims)).assignment
        if sorted(map(len, plan.values())) == sorted(map(len, found.values())):
            assert found == {name: sorted(given) for name, given in plan.items()}
            agreed += 1
    assert agreed > 50


def test_rebalances_without_a_change_move_nothing_whatever_came_before() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        topics = {f"t{index}": range(draw.randint(1, 30)) for index in range(8)}
        everybody = {
            f"m{index:02d}": Member(frozenset(draw.sample(sorted(topics), draw.randint(1, 6))))
            for index in range(14)
        }
        present = set(draw.sample(sorted(everybody), 7))
        claims = Claims()
        for _ in range(8):
            present ^= {draw.choice(sorted(everybody))}
            if not present:
                continue
            group = Group(topics, {name: everybody[name] for name in present})
            plan = assign_sticky(group, claims)
            claims = Claims(plan.assignment)
            for _ in range(2):
                again = assign_sticky(group, claims)
                assert (again.assignment, again.moves, again.revoke, again.assign) == (plan.assignment, 0, {}, {})
