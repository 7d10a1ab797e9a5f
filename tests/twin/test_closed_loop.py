"""Runs in the twin: seeded, as predicted by theory, and summed up correctly."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.control.controllers.p import P
from flyball.control.controllers.pi import Pi
from flyball.control.gains import Gains
from flyball.control.models import first_order
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue
from flyball.loops.policy import Policy
from flyball.twin.closed_loop import Run, Setup, run_closed_loop, step_at
from flyball.twin.engine import Twin, TwinLoop
from flyball.twin.plants import ArxPlant

PREFETCH = first_order(0.26, 59.73)
PI = Pi(kp=-0.0016, ki=0.0060)


def test_a_run_is_determined_by_its_setup() -> None:
    def once(seed: int) -> Run:
        return run_closed_loop(Setup(PREFETCH, PI, 400.0, command=1.0, noise=30.0, seed=seed))

    assert once(1).records == once(1).records
    assert once(1).records != once(2).records


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_the_loop_settles_as_its_certificate_predicts(delay: int) -> None:
    plant = first_order(0.26, 59.73, delay=delay)
    gains = Gains(kp=0.0005, ki=0.0015)
    predicted = verify(plant, gains).settling_step
    # at rest until the goal steps: the step response of the certificate, but for the first glide
    run = run_closed_loop(Setup(plant, Pi(gains.kp, gains.ki), 400.0, samples=200, command=1.0))
    found = run.summary(skip=100, band=0.02).settling
    assert found == pytest.approx(predicted, abs=3)


def test_p_leaves_the_offset_that_theory_says() -> None:
    run = run_closed_loop(Setup(PREFETCH, P(kp=0.01, bias=0.0), 400.0, samples=200))
    gain = PREFETCH.gain * 0.01
    assert run.summary(skip=100).mean == pytest.approx(400.0 * gain / (1.0 + gain))


def test_a_load_step_is_rejected() -> None:
    run = run_closed_loop(Setup(PREFETCH, PI, 400.0, samples=100, command=1.0, disturbance=step_at(50.0, -100.0)))
    assert abs(run.measurement[51] - 400.0) > 50.0
    assert run.measurement[-1] == pytest.approx(400.0, rel=1e-6)


def test_summary_of_a_known_run() -> None:
    y = np.array([0.0, 50.0, 120.0, 104.0, 100.0, 100.0])
    run = Run(np.arange(6.0), np.full(6, 100.0), y, np.zeros(6), ())
    found = run.summary(skip=4, band=0.05)
    assert (found.mean, found.std, found.rmse) == (100.0, 0.0, 0.0)
    assert found.settling == 3
    assert found.overshoot == pytest.approx(0.2)
    assert run.summary(band=0.001).settling == 4
    swinging = Run(np.arange(4.0), np.full(4, 100.0), np.array([0.0, 200.0, 0.0, 200.0]), np.zeros(4), ())
    assert swinging.summary().settling is None


def test_a_goal_may_change_with_time() -> None:
    run = run_closed_loop(Setup(PREFETCH, PI, lambda time: 400.0 if time < 50.0 else 800.0, command=1.0))
    assert run.measurement[49] == pytest.approx(400.0, rel=1e-3)
    assert run.measurement[-1] == pytest.approx(800.0, rel=1e-3)
    assert run.command[50] == pytest.approx(run.command[49], rel=1e-6)  # no bump


def test_several_loops_share_one_time() -> None:
    twin = Twin()
    fast = twin.add(TwinLoop(Policy("fast", PI, 0.5), ArxPlant(PREFETCH, period_s=0.5), 400.0))
    slow = twin.add(
        TwinLoop(Policy("slow", PI, 2.0), ArxPlant(PREFETCH, period_s=2.0), 400.0, mode="shadow", max_records=4)
    )
    twin.run(until_s=10.0)
    assert [record.time for record in fast.records] == [0.5 * k for k in range(20)]
    assert len(slow.records) <= 4
    assert all(record.command is None for record in slow.records)


def test_mistakes_are_refused() -> None:
    with pytest.raises(InvalidValue, match="must be >= 2, got 1"):
        Setup(PREFETCH, PI, 400.0, samples=1)
    with pytest.raises(InvalidValue, match="finite number, got nan"):
        Setup(PREFETCH, PI, float("nan"))
    with pytest.raises(InvalidValue, match="either samples or until_s"):
        Twin().run()
