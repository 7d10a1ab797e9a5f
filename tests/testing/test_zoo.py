"""Twenty scenarios of the zoo, in the twin with the live decisions: the benchmark runs two hundred."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.consumer.policy.goals import Rate
from flyball.control.controllers.fixed import Fixed
from flyball.testing.zoo import Verdict, judge, run, scenario, sweep

SEEDS = range(20)
SHARES = (0.85, 1.5)  # of the knee: fewer fixed windows than the benchmark's


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    found = {}
    for seed in SEEDS:
        drawn = scenario(seed)
        found[drawn.name] = judge(drawn, run(drawn), sweep(drawn, SHARES))
    return found


def test_ours_is_near_the_best_fixed_window_of_each_scenario(verdicts: dict[str, Verdict]) -> None:
    ratios = {name: round(verdict.ratio, 2) for name, verdict in verdicts.items()}
    assert min(ratios.values()) >= 0.7, ratios
    assert np.mean([ratio >= 0.9 for ratio in ratios.values()]) >= 0.9, ratios


def test_goals_that_are_reachable_are_held_and_others_are_explained(verdicts: dict[str, Verdict]) -> None:
    reachable = sum(verdict.reachable for verdict in verdicts.values())
    assert reachable > 200
    assert sum(verdict.held for verdict in verdicts.values()) >= 0.7 * reachable
    assert not [name for name, verdict in verdicts.items() if verdict.unexplained]


def test_one_seed_is_one_scenario() -> None:
    first, again, other = scenario(3), scenario(3), scenario(4)
    assert first.name == again.name
    assert first.name != other.name
    assert [scenario(seed, "latency").kind for seed in range(5)] == ["latency"] * 5


def test_a_window_that_is_far_too_narrow_is_judged_so() -> None:
    drawn = scenario(13)
    assert drawn.kind == "capacity"
    fixed = sweep(drawn, SHARES)
    narrow = run(drawn, Fixed(1.0), goal=Rate(drawn.capacity_per_s), guarded=False)
    assert judge(drawn, narrow, fixed).ratio < 0.6


def test_a_rate_that_is_exceeded_is_judged_so() -> None:
    drawn = scenario(5)
    assert drawn.kind == "rate"
    fixed = sweep(drawn, SHARES)
    wide = run(drawn, Fixed(4.0 * drawn.knee), window=4.0 * drawn.knee, guarded=False)
    verdict = judge(drawn, wide, fixed)
    assert verdict.excess > 1.2
    assert verdict.held < 0.2 * verdict.reachable
