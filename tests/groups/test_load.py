"""Load-aware assignment: beside the best possible on random cases, and in a loop with noise and delay."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.groups.policy.group import Claims, Group, Member
from flyball.groups.policy.load import LoadedGroup, LoadLimits, assign_load, decide_load, utilisations
from flyball.lab.rigs.groups.best_load import least_largest_utilisation

_NO_LIMIT = LoadLimits(band=0.0, max_moves=None)


def _random_group(seed: int) -> LoadedGroup:
    draw = np.random.default_rng(seed)
    queues, members = int(draw.integers(1, 13)), int(draw.integers(1, 5))
    allowed = draw.random((queues, members)) < 0.7
    allowed[:, 0] |= ~allowed.any(axis=1)
    owners = np.array([draw.choice(np.flatnonzero(row)) if draw.random() < 0.7 else -1 for row in allowed])
    return LoadedGroup(
        weights=draw.exponential(1.0, queues),
        errors=np.zeros(queues),
        owners=owners,
        capacities=draw.uniform(0.5, 2.0, members),
        allowed=allowed,
    )


def test_the_largest_utilisation_is_near_the_least_possible() -> None:
    ratios = []
    for seed in range(60):
        group = _random_group(seed)
        decision = decide_load(group, _NO_LIMIT)
        assert np.all(group.allowed[np.arange(decision.owners.size), decision.owners])
        ratios.append(utilisations(group, decision.owners).max() / least_largest_utilisation(group))
    assert max(ratios) < 1.1
    assert np.mean(ratios) < 1.01


def test_a_decision_never_raises_the_largest_utilisation_and_ends() -> None:
    for seed in range(200):
        group = _random_group(seed)
        placed = decide_load(group, LoadLimits(max_moves=0)).owners
        for limits in (LoadLimits(), _NO_LIMIT):
            decision = decide_load(group, limits)
            assert utilisations(group, decision.owners).max() <= utilisations(group, placed).max() + 1e-9
            if limits.max_moves is not None:
                assert len(decision.moved) <= limits.max_moves
        settled = LoadedGroup(group.weights, group.errors, decision.owners, group.capacities, group.allowed)
        assert decide_load(settled, _NO_LIMIT).moved == ()


def test_a_queue_too_heavy_for_every_member_is_reported_and_stays() -> None:
    group = Group({"t": range(4)}, {name: Member(frozenset("t")) for name in "ab"})
    weights = {("t", 0): 9.0, ("t", 1): 1.0, ("t", 2): 1.0, ("t", 3): 1.0}
    claims = Claims({"a": [("t", 0), ("t", 1)], "b": [("t", 2), ("t", 3)]})
    found = assign_load(group, claims, weights, LoadLimits())
    assert found.too_heavy == (("t", 0),)
    assert found.plan.assignment == {"a": [("t", 0)], "b": [("t", 1), ("t", 2), ("t", 3)]}


# --- in a loop with noisy measurements ------------------------------------------------------------


def _run(
    weights: np.ndarray, owners: np.ndarray, *, noise: float, intervals: int, slow_from: int = 10**9, seed: int = 1
) -> tuple[list[int], list[float]]:
    """Moves, and largest / mean utilisation, of each interval; from `slow_from` on member 0 is 3 × slower."""
    draw = np.random.default_rng(seed)
    capacities = np.ones(int(owners.max()) + 1)
    allowed = np.ones((weights.size, capacities.size), bool)
    errors = noise * weights / np.sqrt(10)  # means of ten samples
    moves, spread = [], []
    for interval in range(intervals):
        if interval == slow_from:
            capacities[0] /= 3.0
        measured = weights * (1.0 + draw.normal(0.0, noise, (10, weights.size)).mean(axis=0))
        decision = decide_load(
            LoadedGroup(measured, errors, owners, capacities, allowed), LoadLimits(max_moves=16)
        )
        owners = decision.owners
        moves.append(len(decision.moved))
        used = utilisations(LoadedGroup(weights, errors, owners, capacities, allowed), owners)
        spread.append(float(used.max() / (weights.sum() / capacities.sum())))
    return moves, spread


@pytest.mark.parametrize("level", [0.02, 0.2, 0.8])
def test_stationary_jitter_moves_nothing_at_any_load(level: float) -> None:
    weights = np.full(64, level / 8)
    moves, _ = _run(weights, np.arange(64) % 8, noise=0.3, intervals=180)
    assert sum(moves) == 0


def test_a_member_that_slows_down_is_relieved_within_three_decisions() -> None:
    draw = np.random.default_rng(4)
    weights = draw.uniform(0.03, 0.07, 64)
    moves, spread = _run(weights, np.arange(64) % 8, noise=0.1, intervals=40, slow_from=10)
    assert max(spread[12:]) <= 1.15
    assert sum(moves[13:]) <= 2
