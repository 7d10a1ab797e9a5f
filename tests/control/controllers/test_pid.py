from __future__ import annotations

import numpy as np
import pytest

from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pid import Pid
from flyball.control.step import Sample
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop

A, B = 0.26, 59.73
PUBLISHED = Pid(kp=0.0017761, ki=0.0058096, kd=0.0018417)


def test_prefetch_gains_reach_the_goal() -> None:
    assert close_loop(PUBLISHED, [400.0] * 80, a=A, b=B)[-1].measurement == pytest.approx(400.0)


def test_moves_as_its_characteristic_polynomial_says() -> None:
    """z³ + [b(Kp+Ki+Kd) − (1+a)]z² + [a − b(Kp+2Kd)]z + b·Kd; it would not hold with the printed stray Kd·e(k)."""
    run = close_loop(PUBLISHED, [400.0] * 20, a=A, b=B, command=2.0, measurement=100.0)
    y = np.array([step.measurement for step in run]) - 400.0
    kp, ki, kd = PUBLISHED.kp, PUBLISHED.ki, PUBLISHED.kd
    predicted = (1.0 + A - B * (kp + ki + kd)) * y[3:-1] - (A - B * (kp + 2.0 * kd)) * y[2:-2] - B * kd * y[1:-3]
    assert y[4:] == pytest.approx(predicted, abs=1e-9)


def test_the_formula_is_the_prefetch_paper_s_without_the_stray_term() -> None:
    """u = Kp·e + Ki·Σe + Kd·(e − e₋₁), as differences from the first sample on."""
    errors = [10.0, -4.0, 7.0, 7.0]
    state, given = PUBLISHED.initial(0.0), []
    for e in errors:
        state, action = PUBLISHED.step(state, Sample(0.0, 1.0, setpoint=e, measurement=0.0))
        given.append(action.command)
    for k in range(1, 4):
        wanted = (
            PUBLISHED.kp * (errors[k] - errors[0])
            + PUBLISHED.ki * sum(errors[: k + 1])
            + PUBLISHED.kd * (errors[k] - errors[k - 1])
        )
        assert given[k] == pytest.approx(wanted)


def test_without_kd_it_is_pi() -> None:
    pi, pid = (close_loop(c, [400.0] * 30, a=A, b=B) for c in (Pi(0.001, 0.004), Pid(0.001, 0.004, 0.0)))
    assert [s.applied for s in pid] == pytest.approx([s.applied for s in pi])


def test_derivative_on_measurement_ignores_a_new_goal() -> None:
    moves = {}
    for signal in ("error", "measurement"):
        pid = Pid(kp=0.0, ki=0.0, kd=1.0, derivative_on=signal)
        state, _ = pid.step(pid.initial(10.0), Sample(0.0, 1.0, 100.0, 50.0))
        moves[signal] = pid.step(state, Sample(1.0, 1.0, 300.0, 50.0))[1].command
    assert moves == {"error": 210.0, "measurement": 10.0}


def test_filter_spreads_the_derivative() -> None:
    pid = Pid(kp=0.0, ki=0.0, kd=1.0, derivative_filter=0.75)
    state, _ = pid.step(pid.initial(0.0), Sample(0.0, 1.0, 0.0, 0.0))
    parts = []
    for _ in range(3):
        state, action = pid.step(state, Sample(0.0, 1.0, 8.0, 0.0))
        parts.append(action.parts["d"])
    assert parts == pytest.approx([2.0, 1.5, 1.125])


def test_derivative_starts_afresh_after_a_gap() -> None:
    pid = Pid(kp=0.0, ki=0.0, kd=1.0)
    state, _ = pid.step(pid.initial(5.0), Sample(0.0, 1.0, 0.0, 0.0))
    state, _ = pid.step(state, Sample(1.0, 1.0, 0.0, None))
    _, action = pid.step(state, Sample(2.0, 1.0, 0.0, -1000.0))
    assert action.command == 5.0


def test_does_not_wind_up() -> None:
    run = close_loop(PUBLISHED, [2000.0] * 200 + [400.0] * 60, a=A, b=B, limits=(1.0, 10.0))
    assert run[199].applied == 10.0
    assert run[202].applied < 10.0
    assert run[-1].measurement == pytest.approx(400.0, rel=1e-3)


@pytest.mark.parametrize(("field", "value"), [("derivative_filter", 1.0), ("derivative_on", "goal"), ("kd", True)])
def test_refuses_bad_parameters(field: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=rf"Pid\.{field}"):
        Pid(**{"kp": 1.0, "ki": 1.0, "kd": 1.0, field: value})  # type: ignore[arg-type]  # a user's mistake
