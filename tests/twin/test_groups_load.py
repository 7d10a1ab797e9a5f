"""Groups by load in the twin: what jitter moves, how a slower member is relieved, and where others fail."""

from __future__ import annotations

import pytest

from flyball.lab.rigs.groups.best_load import least_largest_utilisation
from flyball.twin.groups.cases import heavy_case, idle_case, random_case
from flyball.twin.groups.load_run import LoadLoop, run_load
from flyball.twin.groups.plant import Pattern
from flyball.twin.groups.published import FilteredLoad, LagAlone, RelativeBand

_SLOWER_AT_S = 367.0
_AFTER_THREE_S = _SLOWER_AT_S + 60.0


@pytest.mark.parametrize("pattern", ["poisson", "bursts"])
@pytest.mark.parametrize("seed", [11, 12])
def test_stationary_jitter_moves_nothing(pattern: Pattern, seed: int) -> None:
    run = run_load(random_case(seed, pattern=pattern).plant(seed), LoadLoop(), 1_800.0)
    assert run.moves_between(600.0, 1_800.0) == 0


def test_a_member_that_slows_down_is_relieved_within_three_decisions() -> None:
    spreads = []
    for seed in range(8):
        case = random_case(seed, utilisation=0.5, slower_at_s=_SLOWER_AT_S)
        run = run_load(case.plant(seed), LoadLoop(), _AFTER_THREE_S)
        assert run.moves_between(0.0, _SLOWER_AT_S) == 0
        spreads.append(run.spread_at(_AFTER_THREE_S))
    assert sorted(spreads)[len(spreads) // 2] <= 1.15
    assert max(spreads) <= 1.35


def test_beside_a_queue_that_is_too_heavy_the_rest_is_as_good_as_it_can_be() -> None:
    for seed in range(4):
        case = heavy_case(seed, slower_at_s=_SLOWER_AT_S)
        loop = LoadLoop()
        run = run_load(case.plant(seed), loop, _SLOWER_AT_S + 133.0)
        assert run.utilisation[-1].max() <= 1.15 * least_largest_utilisation(case.loaded(_SLOWER_AT_S))
        assert ("t", 0) in loop.too_heavy


# --- three failures of others, each beside ours --------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_a_relative_band_is_crossed_by_jitter_at_low_load(seed: int) -> None:
    case = random_case(seed, utilisation=0.02)
    theirs = run_load(case.plant(seed), RelativeBand(), 1_200.0)
    ours = run_load(case.plant(seed), LoadLoop(), 1_200.0)
    assert theirs.moves_between(300.0, 1_200.0) > 50
    assert ours.moves_between(0.0, 1_200.0) == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_filter_whose_lag_is_not_in_the_model_unloads_too_much(seed: int) -> None:
    case = random_case(seed, utilisation=0.5, slower_at_s=_SLOWER_AT_S)
    theirs = run_load(case.plant(seed), FilteredLoad(), 900.0)
    ours = run_load(case.plant(seed), LoadLoop(), 900.0)
    after = slice(int(_SLOWER_AT_S), None)
    slow = 0
    assert (theirs.utilisation[after, slow] / theirs.mean[after]).min() < 0.5
    assert (ours.utilisation[after, slow] / ours.mean[after]).min() > 0.8
    assert ours.moves.sum() < theirs.moves.sum()
    assert ours.spread_at(_AFTER_THREE_S) < theirs.spread_at(_AFTER_THREE_S)


def test_lag_alone_puts_all_idle_queues_on_one_member() -> None:
    theirs, ours = idle_case(600.0).plant(5), idle_case(600.0).plant(5)
    run_load(theirs, LagAlone(), 599.0)
    run_load(ours, LoadLoop(), 599.0)
    assert max(list(theirs.owners.values()).count(f"m{n}") for n in range(4)) >= 36
    assert max(list(ours.owners.values()).count(f"m{n}") for n in range(4)) == 10
    woken = run_load(theirs, LagAlone(), 601.0), run_load(ours, LoadLoop(), 601.0)
    assert woken[0].utilisation[-1].max() > 3.0
    assert woken[1].utilisation[-1].max() == pytest.approx(1.0)


def test_idle_queues_that_are_piled_up_are_spread_again() -> None:
    plant = idle_case(600.0).plant(5)
    plant.assign(dict.fromkeys(plant.owners, "m0"))
    run_load(plant, LoadLoop(), 400.0)
    counts = [list(plant.owners.values()).count(f"m{n}") for n in range(4)]
    assert max(counts) <= 20
