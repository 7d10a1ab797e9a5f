"""Whole controllers, with filters, limits, feed-forward and schedules: the verdict against real runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flyball.control.controllers.aimd import Aimd
from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.controllers.p import P
from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pi_ff import PiFf
from flyball.control.controllers.pid import Pid
from flyball.control.gains import Gains
from flyball.control.models import Arx, first_order
from flyball.control.step import Sample
from flyball.control.verification.controller import verify_controller
from flyball.control.verification.switching import judge_switching
from flyball.control.wrappers import Bumpless, DeadBand, Ewma, Median, Saturation, Slew
from flyball.testing.closed_loop import close_loop
from tests.new_cases import case_seed

FLOW = first_order(0.985, -134.0)  # the event-processing paper's plant, and the gains printed for it
PRINTED = {"kp": -0.00614, "ki": 0.02168}


def swing(controller: Any, plant: Arx, samples: int) -> tuple[float, float]:
    """The largest deviation from the set point in the second and in the last fifth of a run."""
    run = close_loop(controller, [1.0] * samples, a=plant.a[0], b=plant.b[0], delay=plant.delay)
    errors = np.abs([step.measurement - 1.0 for step in run])
    fifth = samples // 5
    return float(errors[fifth : 2 * fifth].max()), float(errors[-fifth:].max())


@pytest.mark.hypothesis  # its cases are generated, too
def test_filters_are_part_of_the_loop() -> None:
    """PI, PI with feed-forward and PID behind one or two averages: the verdict is what a run shows."""
    first, verdicts = 1000 * case_seed(), {True: 0, False: 0}
    for seed in range(first, first + 200):
        rng = np.random.default_rng(seed)
        plant = first_order(float(rng.uniform(0.0, 0.98)), 1.0, int(rng.integers(0, 3)))
        kp, ki = float(rng.uniform(0.0, 0.6)), float(10.0 ** rng.uniform(-2.0, -0.2))
        inner: Any = (Pi(kp, ki), PiFf(kp, ki, setpoint_gain=0.1), Pid(kp, ki, 0.1))[seed % 3]
        controller = Ewma(inner, keep=float(rng.uniform(0.3, 0.95)))
        if rng.random() < 0.5:
            controller = Ewma(Saturation(controller, -1e300, 1e300), keep=0.5)
        found = verify_controller(plant, controller)
        certificate = found.certificates[0]
        if abs(certificate.radius - 1.0) < 0.02:
            continue  # a run that long cannot tell
        early, late = swing(controller, plant, 400)
        stable = found.verdict != "unstable"
        assert stable == (late < 0.5 * early or late < 1e-9), f"seed {seed}: {controller} on {plant}: {found}"
        verdicts[stable] += 1
    assert min(verdicts.values()) > 10, verdicts


def test_a_filter_can_make_an_accepted_loop_unstable() -> None:
    gains = Pi(kp=-0.0036, ki=-0.0014)
    assert verify_controller(FLOW, gains).verdict == "accepted"
    assert verify_controller(FLOW, Ewma(gains, keep=0.9)).verdict == "unstable"
    assert verify_controller(FLOW, Median(gains, size=9)).verdict == "unstable"


@pytest.mark.parametrize(
    "controller",
    [
        PiFf(kp=-0.00614, ki=0.02168),
        PiFf(-0.00614, 0.02168, 1.0, (1.0,)),
        GainScheduled((Region(0.0, **PRINTED),)),
        GainScheduled((Region(0.0, -0.0036, -0.0014), Region(500.0, **PRINTED))),
        Slew(Saturation(Bumpless(Pi(**PRINTED)), 0.0, 10.0), rise=1.0),
    ],
    ids=lambda controller: type(controller).__name__,
)
def test_unstable_gains_are_found_wherever_they_are(controller: Any) -> None:
    assert verify_controller(FLOW, controller).verdict == "unstable"


def test_what_is_nonlinear_or_unknown_says_so() -> None:
    pi = Pi(kp=-0.0036, ki=-0.0014)
    for controller in (Slew(pi, rise=1.0), DeadBand(pi, width=1.0)):
        found = verify_controller(FLOW, controller)
        assert found.verdict == "accepted"
        assert found.certificates[0].method == "linearised"
    assert verify_controller(FLOW, Saturation(pi, 0.0, 1.0)).certificates[0].method == "proven"
    unknown = verify_controller(FLOW, Aimd())
    assert unknown.verdict is None
    assert str(unknown) == "not verified: verification knows no linear form of Aimd"

    class Strange:
        inner = P(1.0)

    assert str(verify_controller(FLOW, Strange())) == "not verified: verification knows no wrapper Strange"


def switched_run(plant: Arx, schedule: list[Gains], order: list[int]) -> float:
    """The largest deviation in the last samples, from 1 at the start, with gains switched in this order."""
    regions = tuple(Region(float(i), one.kp, one.ki, one.kd) for i, one in enumerate(schedule))
    loop = GainScheduled(regions, by="disturbance")
    state, u, y = loop.initial(0.0), 0.0, 1.0
    under_way, seen = [0.0] * plant.delay, []
    for k, region in enumerate(order):
        sample = Sample(float(k), 1.0, 0.0, y, u, disturbances=(float(region),))
        state, action = loop.step(state, sample)
        assert isinstance(action.command, float)
        u = action.command
        under_way.append(u)
        y = plant.a[0] * y + plant.b[0] * under_way.pop(0)
        seen.append(abs(y))
        if not math.isfinite(y) or abs(y) > 1e12:
            return math.inf
    return max(seen[-20:])


@pytest.mark.hypothesis  # its cases are generated, too
def test_switching_that_is_proven_stable_is_stable_in_random_orders() -> None:
    first, found = 1000 * case_seed(), {"stable": 0, "unstable": 0, "unproven": 0}
    for seed in range(first, first + 60):
        rng = np.random.default_rng(seed)
        plant = first_order(float(rng.uniform(0.0, 0.97)), 1.0, int(rng.integers(0, 2)))
        schedule: list[Gains] = []
        while len(schedule) < 2:
            gains = Gains(float(rng.uniform(-0.5, 1.5)), float(10.0 ** rng.uniform(-2.0, 0.3)))
            if verify_controller(plant, Pi(gains.kp, gains.ki)).verdict != "unstable":
                schedule.append(gains)
        verdict = judge_switching(plant, schedule)
        found[verdict] += 1
        if verdict == "stable":
            order = rng.integers(0, 2, 600).tolist()
            assert switched_run(plant, schedule, order) < 1.0, f"seed {seed}: {schedule} on {plant}"
    assert found["stable"] >= 20, found
    assert found["unstable"] + found["unproven"] >= 1, found


def test_a_schedule_of_accepted_gains_is_accepted_with_its_switching() -> None:
    plant = first_order(0.26, 59.73)
    schedule = GainScheduled((Region(0.0, -0.0016, 0.006), Region(500.0, -0.001, 0.004)))
    found = verify_controller(plant, schedule)
    assert found.verdict == "accepted"
    assert "every order of switching" in found.reason
    assert len(found.certificates) == 2
    filtered = verify_controller(plant, Ewma(schedule, keep=0.1))
    assert filtered.verdict == "fragile"
    assert "not verified with filters" in filtered.reason
