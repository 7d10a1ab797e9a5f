from __future__ import annotations

import math

import pytest

from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pi_ff import PiFf
from flyball.control.step import Sample
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop

A, B = 0.26, 59.73


def test_without_feed_forward_it_is_pi() -> None:
    one, other = (close_loop(c, [400.0] * 30, a=A, b=B) for c in (Pi(0.001, 0.004), PiFf(0.001, 0.004)))
    assert [s.applied for s in other] == pytest.approx([s.applied for s in one])


def test_setpoint_gain_moves_the_actuator_at_once() -> None:
    gain = (1.0 - A) / B
    goals = [400.0] * 30 + [800.0] * 30
    start = 400.0 * gain
    fast, slow = (
        close_loop(c, goals, a=A, b=B, command=start, measurement=400.0)
        for c in (PiFf(0.0, 0.0005, setpoint_gain=gain), Pi(0.0, 0.0005))
    )
    assert fast[30].applied >= 800.0 * gain > slow[40].applied
    assert fast[-1].measurement == pytest.approx(800.0, rel=0.02)


def test_measured_disturbance_is_cancelled_before_it_shows() -> None:
    """A load d enters as −2·d: with the gain 2/59.73 the output does not notice."""
    loop, y = PiFf(0.0, 0.001, disturbance_gains=(2.0 / B,)), 400.0
    state = loop.initial(400.0 * (1.0 - A) / B)
    for k in range(40):
        d = 50.0 if k >= 20 else 0.0
        state, action = loop.step(state, Sample(float(k), 1.0, 400.0, y, None, (d,)))
        assert isinstance(action.command, float)
        y = A * y + B * action.command - 2.0 * d
        assert y == pytest.approx(400.0)


@pytest.mark.parametrize("broken", [(math.nan,), (math.inf,), ()])
def test_lost_disturbance_sensor_keeps_its_last_value(broken: tuple[float, ...]) -> None:
    loop = PiFf(0.0, 0.01, disturbance_gains=(1.0,))
    state, first = loop.step(loop.initial(12.0), Sample(0.0, 1.0, 400.0, 400.0, None, (10.0,)))
    _, action = loop.step(state, Sample(1.0, 1.0, 400.0, 400.0, None, broken))
    assert action.command == first.command
    assert action.parts["ff"] == 10.0


def test_refuses_gains_that_are_no_numbers() -> None:
    with pytest.raises(InvalidValue, match=r"PiFf\.disturbance_gains"):
        PiFf(0.0, 0.1, disturbance_gains=(1.0, math.nan))
