from __future__ import annotations

import pytest

from flyball.control.controllers.lqr import Lqr, for_lanes
from flyball.control.controllers.state_feedback import StateFeedback
from flyball.control.design.lane_balance import balance
from flyball.control.models import first_order
from flyball.control.step import Sample
from flyball.errors import InvalidValue


def run_lanes(
    lqr: Lqr, slowness: tuple[float, ...], samples: int, delay: int, a: float = 0.6
) -> list[tuple[float, ...]]:
    """Responses of lanes that each answer their share; returned with the shares of the last sample."""
    lanes = len(slowness)
    shares = (1.0 / lanes,) * lanes
    y, under_way = (0.0,) * lanes, [shares] * delay
    state = lqr.initial(shares)
    for k in range(samples):
        state, action = lqr.step(state, Sample(float(k), 1.0, 0.0, y, shares))
        assert isinstance(action.command, tuple)
        shares = action.command
        under_way.append(shares)
        y = tuple(a * yi + 2.5 * si * wi for yi, si, wi in zip(y, slowness, under_way.pop(0), strict=True))
    return [y, shares]


@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize("slowness", [(1.0, 1.0, 2.0), (1.0, 3.0), (0.5, 1.0, 1.5, 2.0)])
def test_differences_of_lanes_converge(slowness: tuple[float, ...], delay: int) -> None:
    lqr = for_lanes(balance(len(slowness), first_order(0.6, 2.5, delay)))
    responses, shares = run_lanes(lqr, slowness, 400, delay)
    assert max(responses) - min(responses) < 1e-6
    assert sum(shares) == pytest.approx(1.0)
    even = [(1.0 / s) / sum(1.0 / t for t in slowness) for s in slowness]
    assert list(shares) == pytest.approx(even)


def test_one_actuator_is_scalar_state_feedback() -> None:
    vector, scalar = Lqr(ki=((0.1,),), ky=((0.3,),), ku=((0.5, 0.25),)), StateFeedback(0.1, (0.3,), (0.5, 0.25))
    states = vector.initial((4.0,)), scalar.initial(4.0)
    y = 0.0
    for k in range(20):
        one, ours = vector.step(states[0], Sample(float(k), 1.0, (10.0,), (y,)))
        other, theirs = scalar.step(states[1], Sample(float(k), 1.0, 10.0, y))
        states = one, other
        assert ours.command == pytest.approx((theirs.command,))
        assert isinstance(theirs.command, float)
        y = 0.5 * y + theirs.command


def test_back_calculates_each_actuator() -> None:
    lqr = Lqr(ki=((1.0, 0.0), (0.0, 1.0)), ky=((0.0, 0.0), (0.0, 0.0)))
    state, _ = lqr.step(lqr.initial((0.0, 0.0)), Sample(0.0, 1.0, (5.0, 5.0), (0.0, 0.0)))
    _, action = lqr.step(state, Sample(1.0, 1.0, (5.0, 5.0), (0.0, 0.0), applied=(5.0, 2.0)))
    assert action.command == (10.0, 7.0)


def test_holds_on_a_measurement_of_another_size() -> None:
    lqr = Lqr(ki=((1.0, 0.0),), ky=((0.0, 0.0),))
    _, action = lqr.step(lqr.initial(1.0), Sample(0.0, 1.0, (1.0, 1.0), (1.0, 1.0, 1.0)))
    assert action.command is None


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"ki": (), "ky": ()}, "ki"),
        ({"ki": ((1.0,),), "ky": ((1.0, 2.0),)}, "ky"),
        ({"ki": ((1.0,),), "ky": ((float("nan"),),)}, "ky"),
        ({"ki": ((1.0,), (1.0,)), "ky": ((1.0,), (1.0,)), "ku": ((1.0,), (1.0,))}, "ku"),
        ({"ki": ((1.0,), (1.0, 2.0)), "ky": ((1.0,), (1.0,))}, "ki"),
    ],
)
def test_refuses_matrices_that_do_not_fit(config: dict[str, tuple[tuple[float, ...], ...]], field: str) -> None:
    with pytest.raises(InvalidValue, match=rf"Lqr\.{field}"):
        Lqr(**config)


def test_refuses_another_number_of_actuators() -> None:
    with pytest.raises(InvalidValue, match="2 commands"):
        Lqr(ki=((1.0,), (1.0,)), ky=((1.0,), (1.0,))).initial(3.0)
