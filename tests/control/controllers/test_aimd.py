from __future__ import annotations

import pytest

from flyball.control.controllers.aimd import Aimd
from flyball.control.step import Sample
from flyball.control.wrappers import Saturation
from flyball.errors import InvalidValue


def test_adds_when_well_and_cuts_when_congested() -> None:
    aimd = Aimd(increase=2.0, decrease=0.25)
    assert aimd.step(aimd.initial(8.0), Sample(0.0, 1.0, 50.0, 49.0))[1].command == 10.0
    assert aimd.step(aimd.initial(8.0), Sample(0.0, 1.0, 50.0, 51.0))[1].command == 2.0


def test_congestion_can_lie_below_the_goal() -> None:
    aimd = Aimd(congested="below")
    assert aimd.step(aimd.initial(8.0), Sample(0.0, 1.0, 50.0, 49.0))[1].command == 4.0


def test_starts_from_what_was_applied() -> None:
    aimd = Aimd()
    state, _ = aimd.step(aimd.initial(8.0), Sample(0.0, 1.0, 50.0, 10.0))
    assert aimd.step(state, Sample(1.0, 1.0, 50.0, 10.0, applied=3.0))[1].command == 4.0


def test_two_publishers_end_with_equal_shares() -> None:
    """The point of the rule: whoever has more gives up more, so shares of a link of 100 even out."""
    aimd = Saturation(Aimd(), low=1.0, high=1000.0)
    states, shares = [aimd.initial(90.0), aimd.initial(5.0)], [90.0, 5.0]
    totals = []
    for k in range(600):
        seen = Sample(float(k), 1.0, setpoint=100.0, measurement=sum(shares))
        results = [aimd.step(state, seen) for state in states]
        states = [state for state, _ in results]
        shares = [action.command for _, action in results if isinstance(action.command, float)]
        totals.append(sum(shares))
    assert abs(shares[0] - shares[1]) < 1.0
    assert min(totals[100:]) >= 50.0
    assert max(totals[100:]) <= 104.0


@pytest.mark.parametrize(
    ("field", "value"), [("increase", 0.0), ("decrease", 1.0), ("decrease", 0.0), ("congested", "left")]
)
def test_refuses_bad_parameters(field: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=rf"Aimd\.{field}"):
        Aimd(**{field: value})  # type: ignore[arg-type]  # a user's mistake
