from __future__ import annotations

import pytest

from flyball.control.controllers.p import P
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop


@pytest.mark.parametrize("kp", [0.005, 0.02])
def test_settles_where_the_arithmetic_says(kp: float) -> None:
    gain = 59.73 / (1.0 - 0.26)
    run = close_loop(P(kp, bias=0.0), [400.0] * 400, a=0.26, b=59.73)
    assert run[-1].measurement == pytest.approx(400.0 * gain * kp / (1.0 + gain * kp))


def test_prefetch_gain_of_002_reaches_62_percent() -> None:
    run = close_loop(P(0.02, bias=0.0), [400.0] * 400, a=0.26, b=59.73)
    assert run[-1].measurement / 400.0 == pytest.approx(0.62, abs=0.005)


@pytest.mark.parametrize(("kp", "stable"), [(0.0210, True), (0.0212, False), (-0.0123, True), (-0.0125, False)])
def test_is_stable_exactly_in_the_range_of_the_prefetch_paper(kp: float, stable: bool) -> None:
    run = close_loop(P(kp, bias=0.0), [400.0] * 3000, a=0.26, b=59.73)
    assert (abs(run[-1].measurement - run[-2].measurement) < 1.0) is stable


def test_works_around_the_command_it_started_at() -> None:
    right = 400.0 * (1.0 - 0.26) / 59.73
    run = close_loop(P(0.005), [400.0] * 100, a=0.26, b=59.73, command=right)
    assert run[-1].measurement == pytest.approx(400.0)


def test_refuses_a_gain_that_is_no_number() -> None:
    with pytest.raises(InvalidValue, match=r"P\.kp must be a finite number, got nan"):
        P(float("nan"))
