"""Whether the rate answers to the window: noticed when it does not, and not too early where metrics are late."""

from __future__ import annotations

import pytest

from flyball.consumer.policy import reachability
from flyball.consumer.policy.reachability import Reachability
from flyball.control.step import ReasonCode


def test_a_spell_that_answers_is_no_limit() -> None:
    state = Reachability()
    for window in (1.0, 2.0, 4.0, 8.0, 16.0):
        state = reachability.update(state, 10_000.0, 50.0 * window, window, 0.02, full=True)
    assert state.reachable is None
    assert state.limit is None


def test_the_window_stops_growing_before_the_verdict() -> None:
    state, window, windows = Reachability(), 1.0, []
    for _ in range(8):
        state = reachability.update(state, 1000.0, 100.0, window, 0.01 * window, full=True)
        needed = 1000.0 * 0.01 * window  # messages queue inside the window: Little's law asks for ever more
        window = needed if state.limit is None else min(needed, state.limit)
        windows.append(window)
    assert max(windows) == 10.0
    assert state.reachable == 100.0
    assert windows[-1] == pytest.approx(100.0 * 0.01 * 1.25)
    assert reachability.explain(state, 1000.0)[0] is ReasonCode.UNREACHABLE


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_a_metric_that_is_late_is_waited_for(late: int) -> None:
    """From a window of 1 to one of 10: the rate is measured `late` samples later."""
    rates, state = [38.0], Reachability()
    for sample in range(12):
        window = 1.0 if sample == 0 else 10.0
        rates.append(38.0 * window)
        state = reachability.update(state, 400.0, rates[max(0, len(rates) - 1 - late)], window, 0.026, full=True)
        assert state.held_window is None
        assert state.limit in (None, 10.0)  # it is not shut meanwhile
    assert state.limit is None
