"""What a user declares: checks, advice, and designs that are judged before they act."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import flyball
from flyball.control.controllers.aimd import Aimd
from flyball.control.controllers.pi import Pi
from flyball.control.models import first_order
from flyball.control.step import ReasonCode
from flyball.control.wrappers import Ewma
from flyball.errors import InvalidValue
from flyball.loops.loop import Loop
from flyball.loops.runner import run
from flyball.testing.clock import VirtualClock
from flyball.twin.plants import ArxPlant

FLOW = first_order(0.985, -134.0)
CORRECTED, PRINTED = Pi(-0.00614, -0.00799), Pi(-0.00614, 0.02168)


def _loop(**more: Any) -> Loop:
    options: dict[str, Any] = {
        "sensor": lambda: 1.0,
        "actuator": lambda _: None,
        "controller": Pi(0.1, 0.1),
        "goal": 1.0,
    }
    return Loop("space", **(options | more))


def test_it_is_the_public_name() -> None:
    assert flyball.Loop is Loop


def test_it_starts_by_touching_nothing_at_the_lower_limit() -> None:
    assert _loop().mode == "advise"
    assert _loop(limits=(3.0, 9.0)).command == 3.0
    assert _loop(limits=(3.0, 9.0), command=4.0).command == 4.0


def test_unstable_gains_never_act() -> None:
    with pytest.raises(InvalidValue, match=r"loop 'space' with Pi.* is unstable"):
        _loop(controller=PRINTED, model=FLOW, mode="on")
    loop = _loop(controller=PRINTED, model=FLOW)  # to look at is allowed …
    with pytest.raises(InvalidValue, match="unstable"):
        loop.mode = "on"  # … to act is not
    assert loop.mode == "advise"


def test_fragile_gains_act_only_when_allowed_by_name() -> None:
    with pytest.raises(InvalidValue, match=r"is fragile: .*allow_fragile=True"):
        _loop(controller=Ewma(CORRECTED, keep=0.0), model=FLOW, mode="on")
    loop = _loop(controller=CORRECTED, model=FLOW, mode="on", allow_fragile=True)
    with pytest.raises(InvalidValue, match="unstable"):
        loop.controller = PRINTED
    assert loop.controller == CORRECTED


def test_a_controller_without_linear_gains_is_not_verified() -> None:
    assert _loop(controller=Aimd(), model=FLOW, mode="on").mode == "on"


@pytest.mark.parametrize("goal", [math.nan, math.inf, (1.0, math.nan)])
def test_a_goal_is_finite(goal: Any) -> None:
    with pytest.raises(InvalidValue, match="the goal of loop 'space' must be a finite number, got"):
        _loop(goal=goal)


def test_a_reference_gives_the_set_point_of_each_sample() -> None:
    """It is called after the sensor, so that it may follow from what was measured."""
    measured: list[float] = []

    def sensor() -> float:
        measured.append(float(len(measured)))
        return measured[-1]

    loop = _loop(sensor=sensor, goal=None, reference=lambda: 10.0 * measured[-1])
    before = loop.goal
    assert before is None
    runner = run([loop], samples=3, clock=VirtualClock())
    assert [(record.setpoint, record.measurement) for record in runner.records()] == [
        (0.0, 0.0),
        (10.0, 1.0),
        (20.0, 2.0),
    ]
    assert loop.goal == 20.0
    with pytest.raises(InvalidValue, match=r"comes from its reference, got the goal 5\.0"):
        loop.goal = 5.0


@pytest.mark.parametrize("reference", [lambda: math.nan, lambda: 1 / 0])
def test_a_reference_that_fails_moves_nothing(reference: Any) -> None:
    moves: list[float] = []
    loop = _loop(goal=None, reference=reference, actuator=moves.append, mode="on")
    (record,) = run([loop], samples=1, clock=VirtualClock()).records()
    assert moves == []
    assert record.command is None
    assert record.code in (ReasonCode.REFERENCE_FAILED, ReasonCode.HELD_INVALID_SAMPLE)
    assert record.reason


def test_a_loop_has_either_a_goal_or_a_reference() -> None:
    with pytest.raises(InvalidValue, match="either a goal or a reference, got None and None"):
        _loop(goal=None)
    with pytest.raises(InvalidValue, match="either a goal or a reference"):
        _loop(reference=lambda: 1.0)


def test_a_mode_is_one_of_three() -> None:
    with pytest.raises(InvalidValue, match="one of advise, shadow, on, got 'off'"):
        _loop(mode="off")


def test_advice_finds_the_plant_and_proposes_gains_that_are_accepted() -> None:
    """Somebody else moves the actuator; the loop only watches."""
    clock, rng = VirtualClock(), np.random.default_rng(5)
    plant = ArxPlant(first_order(0.26, 59.73, delay=1), command=5.0, noise=10.0, rng=rng)

    position = 5.0

    def sensor() -> float:
        nonlocal position
        loop.applied(position)  # in force since the last sample
        measured = plant.measure(clock.now())
        position = float(rng.integers(2, 20))
        plant.apply(position, clock.now())
        return measured

    loop = _loop(sensor=sensor, command=5.0, goal=400.0)
    runner = run([loop], samples=300, clock=clock)
    recommendation = runner.recommend("space")
    assert recommendation.fit is not None
    assert recommendation.proposal is not None
    assert recommendation.fit.model.a[0] == pytest.approx(0.26, abs=0.02)
    assert recommendation.fit.model.b[0] == pytest.approx(59.73, rel=0.02)
    assert recommendation.fit.model.delay == 1
    assert recommendation.proposal.certificate.accepted
    assert "R²" in str(recommendation)
    assert "settles in" in str(recommendation)


def test_no_advice_without_movement() -> None:
    clock = VirtualClock()
    runner = run([_loop()], samples=50, clock=clock)
    recommendation = runner.recommend("space")
    assert recommendation.proposal is None
    assert str(recommendation).startswith("no recommendation yet: ")


def test_a_loop_says_what_verification_found() -> None:
    assert _loop(controller=CORRECTED).verification == "not verified: there is no model of the plant"
    assert _loop(controller=Aimd(), model=FLOW).verification.startswith(
        "not verified: verification knows no linear"
    )
    assert _loop(controller=PRINTED, model=FLOW).verification.startswith(
        "unstable: a closed-loop pole lies at 4.03"
    )


def test_a_filter_that_makes_the_loop_unstable_is_refused() -> None:
    accepted = Pi(kp=-0.0036, ki=-0.0014)
    assert _loop(controller=accepted, model=FLOW, mode="on").verification.startswith("accepted")
    with pytest.raises(InvalidValue, match="unstable"):
        _loop(controller=Ewma(accepted, keep=0.9), model=FLOW, mode="on")
