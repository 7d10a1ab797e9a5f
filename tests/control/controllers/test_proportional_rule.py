from __future__ import annotations

import pytest

from flyball.control.controllers.proportional_rule import ProportionalRule
from flyball.control.step import ReasonCode, Sample
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop


def test_lands_in_one_step_on_a_proportional_plant() -> None:
    run = close_loop(ProportionalRule(), [2400.0] * 4, a=0.0, b=60.0, command=20.0, measurement=1200.0)
    assert [step.measurement for step in run] == [1200.0, 2400.0, 2400.0, 2400.0]


def test_leaves_small_errors_alone() -> None:
    rule = ProportionalRule(tolerance=0.1)
    for measured in (91.0, 100.0, 111.0):
        assert rule.step(rule.initial(7.0), Sample(0.0, 1.0, 100.0, measured))[1].command == 7.0
    assert rule.step(rule.initial(7.0), Sample(0.0, 1.0, 100.0, 80.0))[1].command == 8.75


@pytest.mark.parametrize(("measured", "command"), [(0.0, 40.0), (1e-300, 40.0), (1e9, 2.5)])
def test_one_step_is_bounded(measured: float, command: float) -> None:
    rule = ProportionalRule()
    assert rule.step(rule.initial(10.0), Sample(0.0, 1.0, 100.0, measured))[1].command == command


def test_a_command_of_zero_is_left() -> None:
    rule = ProportionalRule(least=1.0)
    assert rule.step(rule.initial(0.0), Sample(0.0, 1.0, 100.0, 50.0))[1].command == 2.0


@pytest.mark.parametrize(("goal", "measured"), [(-1.0, 5.0), (5.0, -1.0), (0.0, 0.0)])
def test_holds_where_there_is_no_ratio(goal: float, measured: float) -> None:
    rule = ProportionalRule()
    _, action = rule.step(rule.initial(10.0), Sample(0.0, 1.0, goal, measured))
    assert action.command is None
    assert action.code is ReasonCode.HELD_INVALID_SAMPLE


def test_refuses_a_factor_that_cannot_move() -> None:
    with pytest.raises(InvalidValue, match=r"ProportionalRule\.greatest_factor"):
        ProportionalRule(greatest_factor=1.0)
