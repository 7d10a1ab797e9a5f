"""Whether the rate answers to the window: noticed when it does not, and not too early where metrics are late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flyball.consumer.policy import reachability
from flyball.consumer.policy.reachability import Reachability
from flyball.control.step import ReasonCode


def test_a_spell_that_answers_is_no_limit() -> None:
    state = Reachability()
    for window in (1.0, 2.0, 4.0, 8.0, 16.0):
        state = reachability.update(state, 10_000.0, 50.0 * window, window, full=True)
    assert state.reachable is None
    assert state.limit is None


def test_the_window_stops_growing_before_the_verdict() -> None:
    state, window, windows = Reachability(), 1.0, []
    for _ in range(5):
        state = reachability.update(state, 1000.0, 100.0, window, full=True)
        needed = 1000.0 * 0.01 * window  # messages queue inside the window: Little's law asks for ever more
        window = needed if state.limit is None else min(needed, state.limit)
        windows.append(window)
    assert max(windows) == 10.0
    assert state.reachable == 100.0
    assert windows[-1] == 10.0  # held where it is, which gives all that is reachable
    assert reachability.explain(state, 1000.0)[0] is ReasonCode.UNREACHABLE


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_a_metric_that_is_late_is_waited_for(late: int) -> None:
    """From a window of 1 to one of 10: the rate is measured `late` samples later."""
    rates, state = [38.0], Reachability()
    for sample in range(12):
        window = 1.0 if sample == 0 else 10.0
        rates.append(38.0 * window)
        state = reachability.update(state, 400.0, rates[max(0, len(rates) - 1 - late)], window, full=True)
        assert state.held_window is None
        assert state.limit in (None, 10.0)  # it is not shut meanwhile
    assert state.limit is None


def _hold(
    rate_of: Callable[[float], float], samples: int, window: float = 50.0
) -> tuple[Reachability, list[float]]:
    """Go on from a verdict at a wide window; return the state and the rates."""
    state = Reachability(5, window / 2, 80.0, 80.0, 200.0, held_window=window, wait=30)
    rates = []
    for _ in range(samples):
        assert state.limit is not None
        rates.append(rate_of(state.limit))
        state = reachability.update(state, 200.0, rates[-1], state.limit, full=True)
    return state, rates


def test_the_held_window_becomes_narrower_until_that_costs_rate() -> None:
    state, rates = _hold(lambda window: min(80.0, 10.0 * window), 25)  # eight at a time
    assert state.held_window is not None
    assert 8.0 <= state.held_window <= 12.0
    assert min(rates) >= 0.7 * 80.0
    assert rates[-1] == 80.0
    assert state.reachable == pytest.approx(80.0, rel=0.05)


def test_one_low_sample_is_chance() -> None:
    rates = iter([80.0, 60.0, *[80.0] * 30])
    state, _ = _hold(lambda window: min(next(rates), 10.0 * window), 12)
    assert state.held_window is not None
    assert state.held_window < 12.0


def test_a_rate_that_rises_opens_the_held_window() -> None:
    state, _ = _hold(lambda window: min(80.0, 10.0 * window), 25)
    before = state.held_window
    for _ in range(8):
        assert state.limit is not None
        state = reachability.update(state, 200.0, 10.0 * state.limit, state.limit, full=True)
    assert before is not None
    assert state.held_window is not None
    assert state.held_window > 1.3 * before


def test_an_empty_queue_says_nothing_about_the_held_window() -> None:
    state = Reachability(5, 25.0, 80.0, 80.0, 200.0, held_window=50.0, wait=30)
    assert reachability.update(state, 200.0, 5.0, 50.0, full=False) == state


def test_one_sample_near_the_goal_does_not_end_a_spell() -> None:
    spell = Reachability(3, 10.0, 80.0, 90.0, 100.0)
    once = reachability.update(spell, 100.0, 91.0, 12.0, full=True)
    assert once.samples == spell.samples
    assert reachability.update(once, 100.0, 91.0, 12.0, full=True).samples == 0
