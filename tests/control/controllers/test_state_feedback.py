from __future__ import annotations

import numpy as np
import pytest

from flyball.control.controllers.state_feedback import StateFeedback
from flyball.control.design.placement import place_poles
from flyball.control.gains import StateGains
from flyball.control.models import first_order
from flyball.control.step import Sample
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop

A, B = 0.985, -134.0


def designed(delay: int, poles: list[complex]) -> StateFeedback:
    gains = place_poles(first_order(A, B, delay), "state", poles)
    assert isinstance(gains, StateGains)
    return StateFeedback(gains.ki, gains.ky, gains.ku)


@pytest.mark.parametrize("delay", [0, 1, 2, 4])
def test_has_the_poles_it_was_designed_for_whatever_the_delay(delay: int) -> None:
    """From rest, deviations obey the recurrence of (z − 0.5)(z − 0.4)·z^delay."""
    loop = designed(delay, [0.5, 0.4])
    run = close_loop(loop, [0.0] * 3 + [100.0] * 40, a=A, b=B, delay=delay)
    y = np.array([step.measurement for step in run]) - 100.0
    settled = y[5 + delay + 2 :]
    assert settled[2:] == pytest.approx(0.9 * settled[1:-1] - 0.2 * settled[:-2], abs=1e-9)
    assert run[-1].measurement == pytest.approx(100.0)


def test_leaves_no_steady_error_under_a_load() -> None:
    loop = designed(1, [0.449, 0.449])
    run = close_loop(loop, [400.0] * 60, a=A, b=B, delay=1, offset=250.0)
    assert run[-1].measurement == pytest.approx(400.0)


def test_does_not_wind_up() -> None:
    loop = designed(1, [0.449, 0.449])
    run = close_loop(loop, [400.0] * 300 + [-100.0] * 60, a=A, b=B, delay=1, limits=(-0.02, 0.5))
    assert run[299].applied == -0.02
    assert run[302].applied > -0.02
    assert run[-1].measurement == pytest.approx(-100.0, abs=1.0)


def test_history_goes_on_while_samples_are_missing() -> None:
    loop = StateFeedback(ki=0.1, ky=(0.0,), ku=(0.5, 0.25))
    state, _ = loop.step(loop.initial(0.0), Sample(0.0, 1.0, 0.0, 0.0, applied=0.0))
    state, action = loop.step(state, Sample(1.0, 1.0, 0.0, None, applied=8.0))
    assert action.command is None
    state, action = loop.step(state, Sample(2.0, 1.0, 0.0, 0.0, applied=4.0))
    # I was back-calculated to give 8, then 4; u(k−1) = 4, u(k−2) = 8
    assert action.parts["u"] == -(0.5 * 4.0 + 0.25 * 8.0)


def test_refuses_no_gain_on_the_output() -> None:
    with pytest.raises(InvalidValue, match=r"StateFeedback\.ky"):
        StateFeedback(ki=0.1, ky=())
