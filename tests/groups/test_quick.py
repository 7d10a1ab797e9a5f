"""The quick plan: valid, sticky, near the exact plan, and the same for any order."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.groups.policy.group import Claims, Group, Member
from flyball.groups.policy.level_fill import Ints
from flyball.groups.policy.load_blocks import Bools
from flyball.groups.policy.mixed import assign_mixed
from flyball.groups.policy.quick import assign_quickly
from flyball.groups.policy.sticky import assign_sticky


def _random_case(seed: int) -> tuple[Ints, Ints, Bools]:
    draw = np.random.default_rng(seed)
    topics, members, queues = int(draw.integers(1, 12)), int(draw.integers(1, 15)), int(draw.integers(0, 150))
    reads = draw.random((topics, members)) < draw.choice([0.15, 0.5, 0.9])
    return np.sort(draw.integers(0, topics, queues)), draw.integers(-1, members, queues), reads


def _squares(owners: Ints, members: int) -> int:
    return int((np.bincount(owners[owners >= 0], minlength=members) ** 2).sum())


def test_every_queue_that_somebody_reads_has_an_owner_that_reads_it() -> None:
    for seed in range(300):
        topics, owners, reads = _random_case(seed)
        assigned = assign_quickly(topics, owners, reads)
        readable: Bools = np.any(reads, axis=1)
        assert np.array_equal(assigned >= 0, readable[topics])
        owned = np.flatnonzero(assigned >= 0)
        assert reads[topics[owned], assigned[owned]].all()


def test_the_balance_is_near_the_best_and_a_balanced_plan_stays() -> None:
    ratios = []
    for seed in range(300):
        topics, owners, reads = _random_case(seed)
        best = assign_mixed(topics, owners, reads)
        if not (best >= 0).any():
            continue
        found = _squares(assign_quickly(topics, owners, reads), reads.shape[1])
        ratios.append(found / _squares(best, reads.shape[1]))
        assert np.array_equal(assign_quickly(topics, best, reads), best)
    assert min(ratios) >= 1.0
    assert max(ratios) < 1.06
    assert np.mean(ratios) < 1.001


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_one_member_that_leaves_or_joins_moves_little(share: float) -> None:
    reads = np.random.default_rng(2).random((100, 100)) < share
    topics = np.repeat(np.arange(100), 20)
    absent = reads.copy()
    absent[:, 40] = False
    free = np.full(topics.size, -1)
    for subscriptions, before in (
        (absent, np.where((plan := assign_mixed(topics, free, reads)) == 40, -1, plan)),
        (reads, assign_mixed(topics, free, absent)),
    ):
        quick, exact = (act(topics, before, subscriptions) for act in (assign_quickly, assign_mixed))
        moves, fewest = (int(np.sum((before >= 0) & (after != before))) for after in (quick, exact))
        assert moves <= fewest + 5


def test_a_group_gets_a_quick_plan_and_the_exact_one_after_it() -> None:
    members = {"a": Member(frozenset("tu")), "b": Member(frozenset("t")), "c": Member(frozenset("uv"))}
    group = Group({"t": range(5), "u": range(4), "v": range(3), "unread": range(2)}, members)
    quick = assign_sticky(group, Claims({"a": [("t", 0), ("u", 0)]}), quick=True)
    assert sorted(queue for given in quick.assignment.values() for queue in given) == [
        queue for queue in group.queues() if queue[0] != "unread"
    ]
    exact = assign_sticky(group, Claims(quick.assignment))
    assert exact.balance_degree <= quick.balance_degree
    shuffled = Group(dict(sorted(group.topics.items(), reverse=True)), dict(sorted(members.items(), reverse=True)))
    assert assign_sticky(shuffled, Claims({"a": [("u", 0), ("t", 0)]}), quick=True).assignment == quick.assignment
