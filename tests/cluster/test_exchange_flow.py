"""How fast messages move between two nodes, on pairs whose cost of a message is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.cluster.policy.exchange_flow import ExchangeFlow, FlowState
from flyball.errors import InvalidValue

FLOW = ExchangeFlow()


def run(took_s: Callable[[int], float], rounds: int = 60, state: FlowState | None = None) -> FlowState:
    state = FLOW.begin(state)
    for _ in range(rounds):
        count = FLOW.count(state)
        state = FLOW.update(state, count, took_s(count))
    return state


@given(cost_s=st.floats(1e-4, 2e-2), fixed_s=st.floats(0.0, 0.2))
def test_a_mover_works_for_half_of_the_time(cost_s: float, fixed_s: float) -> None:
    state = run(lambda count: fixed_s + cost_s * count)
    assert state.interval_s is not None
    busy = (fixed_s + cost_s * FLOW.count(state)) / state.interval_s
    at_limit = state.rate_per_s in (FLOW.least_per_s, FLOW.most_per_s) or FLOW.count(state) <= 2
    assert at_limit or busy == pytest.approx(0.5, rel=0.2)
    assert FLOW.rest_s(state, busy * state.interval_s) == pytest.approx(max(0.0, (1 - busy) * state.interval_s))


@given(used=st.floats(0.0, 0.95))
def test_half_of_what_clients_leave_is_used(used: float) -> None:
    """A node that serves 10,000 messages a second, and its clients use a part of it."""
    state = run(lambda count: count * 1e-4 / (1.0 - used))
    assert state.rate_per_s == pytest.approx(0.5 * 1e4 * (1.0 - used), rel=0.15)


@given(st.lists(st.floats(1e-5, 10.0), min_size=1, max_size=50))
def test_limits_hold_whatever_a_round_takes(took_s: list[float]) -> None:
    state = FLOW.begin(None)
    for each in took_s:
        count = FLOW.count(state)
        state = FLOW.update(state, count, each)
        assert FLOW.least_per_s <= state.rate_per_s <= FLOW.most_per_s
        assert FLOW.count(state) >= 1
        assert FLOW.rest_s(state, each) >= 0.0


def test_a_node_that_becomes_slow_is_spared_within_a_few_rounds_and_used_again() -> None:
    fast = run(lambda count: count * 1e-4)
    slow = run(lambda count: count * 1e-2, rounds=12, state=fast)
    assert slow.rate_per_s < 0.02 * fast.rate_per_s
    again = run(lambda count: count * 1e-4, rounds=40, state=slow)
    assert again.rate_per_s > 0.8 * fast.rate_per_s


@pytest.mark.parametrize(("moved", "took_s"), [(0, 1.0), (10, math.nan), (10, math.inf), (10, -1.0)])
def test_rounds_that_say_nothing_change_nothing(moved: int, took_s: float) -> None:
    state = run(lambda count: count * 1e-4)
    assert FLOW.update(state, moved, took_s) == state


@pytest.mark.parametrize(
    "options",
    [{"busy": 0.0}, {"busy": 1.5}, {"keep": 1.0}, {"least_per_s": 0.0}, {"most_per_s": 1.0}, {"round_trips": 0.5}],
)
def test_flows_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidValue, match="ExchangeFlow"):
        ExchangeFlow(**options)
