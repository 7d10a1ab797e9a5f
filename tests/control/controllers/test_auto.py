"""The controller `auto`, step by step; what it does to a broker is tested with the publisher's policy."""

from __future__ import annotations

import pytest

from flyball.control.controllers.publishing.auto import Auto, AutoState
from flyball.control.controllers.publishing.signals import Batching, PublisherMeasurement
from flyball.control.state import from_plain, to_plain
from flyball.control.step import ReasonCode, Sample

TRIP_S = 0.14


def after_a_round(window: float, trips_s: list[float], *, shortest_s: float) -> tuple[float, ReasonCode]:
    """The window after one round of these trips, that held messages back and is long enough; the knee is known."""
    controller = Auto()
    # Not near a multiple of 5 s, at which round trips are measured anew.
    state = AutoState(window, trips=((101.0, shortest_s),), measured_s=101.0, began_s=101.0, doubling=False)
    code = ReasonCode.UNSPECIFIED
    for number, trip_s in enumerate(trips_s):
        last = number == len(trips_s) - 1
        measurement = PublisherMeasurement(
            pending=100.0, transfer_s=trip_s, confirmed=1.0, in_flight=window, limited=1.0
        )
        state, action = controller.step(
            state, Sample(101.8 if last else 101.33 + number * 5e-5, 1e-4, 0.0, tuple(measurement))
        )
        if state.began_s != 101.0:
            code = action.code
            break
    return state.window, code


@pytest.mark.parametrize("samples", [8, 40, 200])
def test_over_a_long_path_one_short_trip_among_many_does_not_hide_the_queue(samples: int) -> None:
    trips_s = [TRIP_S + 0.001, *[TRIP_S + 0.045] * samples]
    window, code = after_a_round(100.0, trips_s, shortest_s=TRIP_S)
    assert code is ReasonCode.LOWERED
    assert window == pytest.approx(after_a_round(100.0, [TRIP_S + 0.045] * 8, shortest_s=TRIP_S)[0])


def test_nearby_the_shortest_trip_counts() -> None:
    """Brokers confirm in groups: whoever comes first in a group waits least, and there was no queue before it."""
    _, code = after_a_round(100.0, [0.002, *[0.04] * 20], shortest_s=0.001)
    assert code is ReasonCode.RAISED


def test_small_windows_catch_up_with_large_ones() -> None:
    small, large = (after_a_round(window, [TRIP_S] * 8, shortest_s=TRIP_S)[0] for window in (10.0, 200.0))
    assert small == pytest.approx(10.0 * 1.1 + Auto().share / 2)
    assert large == pytest.approx(200.0 * 1.1 + Auto().share / 2)


def test_batches_are_large_until_a_rate_is_known() -> None:
    controller = Auto()
    state = controller.initial(tuple(Batching(1.0, 1.0, 0.0, 1.0)))
    _, action = controller.step(state, Sample(101.0, 0.0, 0.0, tuple(PublisherMeasurement(pending=500.0))))
    assert isinstance(action.command, Batching)
    assert (action.command.window, action.command.most) == (128.0, 16.0)


def test_a_stored_state_keeps_its_keys() -> None:
    stored = to_plain(AutoState(window=8.0, limited_since_s=1.0, count_limited=True, unavailable_s=2.0))
    assert (stored["pressed_s"], stored["held"], stored["troubled_s"]) == (1.0, True, 2.0)
    assert from_plain(AutoState, stored).unavailable_s == 2.0
