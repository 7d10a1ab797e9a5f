"""Lane balancing: the total stays, the differences go, a CPU load on one lane is corrected."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.control.design.lane_balance import balance, differences, lane_model
from flyball.control.models import first_order
from flyball.control.verification.verify_matrix import verify_matrix
from flyball.errors import InvalidValue


@pytest.mark.parametrize("lanes", [2, 3, 8])
def test_n_lanes_have_n_minus_1_differences(lanes: int) -> None:
    H = differences(lanes)
    assert H.shape == (lanes - 1, lanes)
    assert np.allclose(H.sum(axis=1), 0.0)
    model = lane_model(lanes, first_order(0.6, 2.5, delay=2))
    assert (model.states, model.inputs) == (3 * (lanes - 1), lanes - 1)


def test_the_model_is_the_lanes_seen_through_the_differences() -> None:
    lane, lanes, H = first_order(0.7, 1.5, delay=2), 4, differences(4)
    rng = np.random.default_rng(5)
    moves = rng.normal(size=(20, lanes - 1))
    seen = lane_model(lanes, lane).simulate(moves)
    per_lane = np.column_stack(
        [first_order(0.7, 1.5).simulate(w) for w in (np.vstack([np.zeros((2, 3)), moves[:-2]]) @ H).T]
    )
    assert np.allclose(seen, per_lane @ H.T)


@pytest.mark.parametrize("lanes", [2, 5])
def test_a_load_on_one_lane_is_balanced_away(lanes: int) -> None:
    """A CPU load adds to lane 0: the differences vanish all the same, and the total stays."""
    lane = first_order(0.6, 2.5, delay=1)
    found = balance(lanes, lane)
    assert verify_matrix(found.design.model, found.design.gains).accepted
    y, total = np.zeros(lanes), np.zeros(lanes)
    under_way = [np.zeros(lanes)]
    load = np.zeros(lanes)
    load[0] = 1.0
    for _ in range(200):
        total = total + y - y.mean()
        w = -found.on_responses @ y - found.on_sums @ total
        w = w - sum(gain @ past for gain, past in zip(found.on_shares, under_way[::-1], strict=True))
        assert abs(w.sum()) < 1e-9
        y = 0.6 * y + 2.5 * under_way[0] + load
        under_way = [*under_way[1:], w]
    assert np.ptp(y) < 1e-6
    assert y.mean() == pytest.approx(1.0 / lanes / 0.4)


def test_two_lanes_are_one_controller_on_the_difference() -> None:
    gains = balance(2, first_order(0.6, 2.5)).on_responses
    assert np.allclose(gains, gains[0, 0] * np.array([[1.0, -1.0], [-1.0, 1.0]]))


def test_bad_lanes_are_refused() -> None:
    with pytest.raises(InvalidValue, match="at least 2 lanes, got 1"):
        balance(1, first_order(0.6, 2.5))
    with pytest.raises(InvalidValue, match="b = 0"):
        balance(2, first_order(0.6, 0.0))
