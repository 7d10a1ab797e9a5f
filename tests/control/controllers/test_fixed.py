from __future__ import annotations

import pytest

from flyball.control.controllers.fixed import Fixed
from flyball.control.step import Sample
from flyball.errors import InvalidValue


def test_keeps_the_command_it_found_when_none_is_given() -> None:
    fixed = Fixed()
    _, action = fixed.step(fixed.initial((3.0, 4.0)), Sample(0.0, 1.0, (1.0, 1.0), (9.0, 9.0)))
    assert action.command == (3.0, 4.0)


def test_moves_to_its_value() -> None:
    fixed = Fixed(10.0)
    assert fixed.step(fixed.initial(3.0), Sample(0.0, 1.0, 1.0, 9.0))[1].command == 10.0


@pytest.mark.parametrize("value", [float("nan"), (1.0, float("inf"))])
def test_refuses_what_is_no_command(value: float | tuple[float, ...]) -> None:
    with pytest.raises(InvalidValue, match=r"Fixed\.value"):
        Fixed(value)


def test_refuses_another_number_of_actuators() -> None:
    with pytest.raises(InvalidValue, match="as many numbers as the command"):
        Fixed((1.0, 2.0)).initial(3.0)
