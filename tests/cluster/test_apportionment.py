"""The fewest moves to within one client of the optimum, compared with trying everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from flyball.cluster.policy.apportionment import apportion, distance


def _placements(clients: int, nodes: int) -> Iterator[tuple[int, ...]]:
    if nodes == 1:
        yield (clients,)
        return
    for first in range(clients + 1):
        for rest in _placements(clients - first, nodes - 1):
            yield (first, *rest)


def _moves(before: Sequence[int], after: Sequence[int]) -> int:
    return sum(max(0, new - old) for old, new in zip(before, after, strict=True))


def _overload(capacities: Sequence[int], producers: Sequence[int], consumers: Sequence[int]) -> int:
    return sum(max(0, n + m - c) for c, n, m in zip(capacities, producers, consumers, strict=True))


def _case(seed: int, nodes: int, clients: int) -> tuple[list[int], list[int], list[int]]:
    draw = np.random.default_rng(seed)
    k = int(draw.integers(1, nodes + 1))
    capacities = [int(c) for c in draw.integers(1, 9, k)]
    weights = draw.dirichlet(np.full(k, 0.5))
    producers = draw.multinomial(int(draw.integers(0, clients)), weights).tolist()
    consumers = draw.multinomial(int(draw.integers(0, clients)), weights[::-1]).tolist()
    return capacities, producers, consumers


def test_it_is_the_best_of_all_placements() -> None:
    for seed in range(150):
        capacities, producers, consumers = _case(seed, nodes=3, clients=7)
        best = min(
            (_overload(capacities, n, m), _moves(producers, n) + _moves(consumers, m))
            for n, m in product(
                _placements(sum(producers), len(capacities)), _placements(sum(consumers), len(capacities))
            )
            if distance(capacities, n) < 1.0 and distance(capacities, m) < 1.0
        )
        n, m = apportion(capacities, producers, consumers)
        found = (_overload(capacities, n, m), _moves(producers, n) + _moves(consumers, m))
        assert found == best, (seed, capacities, producers, consumers, n, m)
        if sum(producers) + sum(consumers) <= sum(capacities):
            assert found[0] == 0


def test_it_is_as_good_as_integer_programming() -> None:
    """Larger cases against another solver: minimise overload, then moves, over the roundings."""
    for seed in range(40):
        capacities, producers, consumers = _case(1000 + seed, nodes=12, clients=50)
        k, total = len(capacities), sum(capacities)
        owned = np.array([*producers, *consumers])
        sums = [sum(producers)] * k + [sum(consumers)] * k
        shares = [c * s / total for c, s in zip(capacities * 2, sums, strict=True)]
        exact = [c * s % total == 0 for c, s in zip(capacities * 2, sums, strict=True)]
        low = np.floor(np.array(shares) + 1e-9)
        high = low + np.where(exact, 0, 1)
        # variables: counts, moves in, overload
        cost = np.concatenate([np.zeros(2 * k), np.ones(2 * k), np.full(k, 1000.0)])
        eye, both = np.eye(2 * k), np.hstack([np.eye(k), np.eye(k)])
        rows = np.vstack(
            [
                np.hstack([eye, -eye, np.zeros((2 * k, k))]),
                np.hstack([both, np.zeros((k, 2 * k)), -np.eye(k)]),
                np.hstack([np.ones(k), np.zeros(4 * k)])[None],
                np.hstack([np.zeros(k), np.ones(k), np.zeros(3 * k)])[None],
            ]
        )
        top = np.concatenate([owned, capacities, [sums[0]], [sums[-1]]])
        bottom = np.concatenate([np.full(3 * k, -np.inf), [sums[0]], [sums[-1]]])
        bounds = Bounds(np.concatenate([low, np.zeros(3 * k)]), np.concatenate([high, np.full(3 * k, np.inf)]))
        solved = milp(
            cost,
            constraints=LinearConstraint(rows, bottom, top),
            bounds=bounds,
            integrality=np.ones(5 * k, np.int64),
        )
        n, m = apportion(capacities, producers, consumers)
        found = 1000 * _overload(capacities, n, m) + _moves(producers, n) + _moves(consumers, m)
        assert found == pytest.approx(solved.fun), (seed, capacities, producers, consumers)


def test_what_is_balanced_stays() -> None:
    for seed in range(300):
        capacities, producers, consumers = _case(seed, nodes=8, clients=60)
        balanced = apportion(capacities, producers, consumers)
        assert apportion(capacities, *balanced) == balanced


def test_equal_nodes_differ_by_at_most_one_client() -> None:
    n, m = apportion([10] * 4, [9, 0, 0, 0], [0, 0, 0, 17])
    assert max(n) - min(n) <= 1
    assert max(m) - min(m) <= 1
    assert (sum(n), sum(m)) == (9, 17)


def test_thousands_of_nodes_that_are_all_in_the_wrong_place() -> None:
    k = 2000
    capacities = [1 + at % 7 for at in range(k)]
    producers = [3 * k // 2 // 10 if at < 10 else 0 for at in range(k)]
    consumers = [0 if at < k - 10 else 2 * k // 10 for at in range(k)]
    n, m = apportion(capacities, producers, consumers)
    assert distance(capacities, n) < 1.0
    assert distance(capacities, m) < 1.0
    assert _overload(capacities, n, m) == 0


def test_nothing_to_share() -> None:
    assert apportion([], [], []) == ([], [])
    assert apportion([3], [0], [0]) == ([0], [0])
    assert distance([], []) == 0.0
