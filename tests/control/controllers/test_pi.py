from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.controllers.pi import Pi
from flyball.control.step import Sample
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop

PUBLISHED = Pi(kp=-0.0016, ki=0.0060)


def test_prefetch_gains_reach_the_goal() -> None:
    run = close_loop(PUBLISHED, [400.0] * 60, a=0.26, b=59.73, command=1.0)
    assert run[-1].measurement == pytest.approx(400.0)
    assert run[-1].applied == pytest.approx(400.0 * 0.74 / 59.73)


@given(kp=st.floats(-0.008, 0.01), ki=st.floats(0.0005, 0.012))
def test_moves_as_its_characteristic_polynomial_says(kp: float, ki: float) -> None:
    """Deviations obey the recurrence of z² + [b(Kp+Ki) − (1+a)]z + a − b·Kp, whatever the gains."""
    a, b = 0.26, 59.73
    run = close_loop(Pi(kp, ki), [400.0] * 12, a=a, b=b, command=2.0, measurement=100.0)
    y = np.array([step.measurement for step in run]) - 400.0
    predicted = (1.0 + a - b * (kp + ki)) * y[2:-1] - (a - b * kp) * y[1:-2]
    assert y[3:] == pytest.approx(predicted, rel=1e-6, abs=1e-6)


def test_integral_does_not_wind_up_while_the_actuator_is_limited() -> None:
    """Out of reach for 200 samples, then the goal falls: knowing what was applied, the actuator leaves at once."""
    goals = [2000.0] * 200 + [400.0] * 40
    known = close_loop(PUBLISHED, goals, a=0.26, b=59.73, limits=(1.0, 10.0))
    blind = close_loop(PUBLISHED, goals, a=0.26, b=59.73, limits=(1.0, 10.0), report=False)
    assert known[199].applied == blind[199].applied == 10.0
    assert known[201].applied < 10.0
    assert blind[239].applied == 10.0  # what wind-up looks like: 40 samples later it has not moved
    assert known[-1].measurement == pytest.approx(400.0, rel=1e-3)


@given(command=st.floats(-1e6, 1e6), error=st.floats(-1e6, 1e6))
def test_first_move_is_the_integral_step_alone(command: float, error: float) -> None:
    pi = Pi(kp=7.0, ki=0.5)
    _, action = pi.step(pi.initial(command), Sample(0.0, 1.0, setpoint=error, measurement=0.0, applied=command))
    assert action.command == pytest.approx(command + 0.5 * error, rel=1e-9, abs=1e-6)


def test_continues_from_a_manual_move() -> None:
    pi = Pi(kp=0.1, ki=0.05)
    state, _ = pi.step(pi.initial(10.0), Sample(0.0, 1.0, 100.0, 90.0, 10.0))
    _, action = pi.step(state, Sample(1.0, 1.0, 100.0, 90.0, applied=50.0))
    assert action.command == pytest.approx(50.0 + 0.05 * 10.0)


def test_a_late_sample_counts_once() -> None:
    pi = Pi(kp=0.1, ki=0.05)
    state, _ = pi.step(pi.initial(10.0), Sample(0.0, 1.0, 100.0, 90.0))
    on_time, late = (pi.step(state, Sample(1.0, dt, 100.0, 80.0))[1].command for dt in (1.0, 3600.0))
    assert on_time == late


def test_parts_add_up_to_the_command() -> None:
    for step in close_loop(PUBLISHED, [400.0] * 10, a=0.26, b=59.73):
        assert sum(step.action.parts.values()) == pytest.approx(step.action.command)


def test_refuses_text_in_a_number() -> None:
    with pytest.raises(InvalidValue, match=r"Pi\.ki must be a finite number, got 'fast'"):
        Pi(kp=1.0, ki="fast")  # type: ignore[arg-type]  # a user's mistake
