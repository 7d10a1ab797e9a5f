from __future__ import annotations

import pytest

from flyball.control.controllers.fixed import Fixed
from flyball.control.models import first_order
from flyball.testing.closed_loop import close_loop


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_is_the_recurrence_of_the_model(delay: int) -> None:
    run = close_loop(Fixed(3.0), [1.0] * 20, a=0.5, b=2.0, delay=delay, offset=1.0, command=3.0, measurement=7.0)
    free = first_order(0.5, 2.0, delay, 1.0).simulate([3.0] * 20, initial=7.0)
    assert [step.measurement for step in run[1:]] == pytest.approx(free[:19].tolist())


def test_delays_the_command_and_adds_noise() -> None:
    run = close_loop(Fixed(3.0), [1.0] * 4, a=0.0, b=1.0, delay=2, noise=[0.0, 10.0])
    assert [step.measurement for step in run] == [0.0, 10.0, 0.0, 3.0]


def test_actuator_has_limits() -> None:
    run = close_loop(Fixed(3.0), [1.0] * 3, a=0.0, b=1.0, limits=(0.0, 2.0))
    assert [step.applied for step in run] == [2.0] * 3
