"""A command at its limit: noise does not pull it off, and it comes back as soon as the goal can be reached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pi_ff import PiFf
from flyball.control.controllers.pid import Pid
from flyball.control.controllers.state_feedback import StateFeedback
from flyball.control.design.design import design
from flyball.control.gains import Gains, StateGains
from flyball.control.models import first_order
from flyball.control.step import Controller, Sample
from flyball.twin.closed_loop import Run, Setup, run_closed_loop

HIGH = 10.0
GOAL = 1.25  # times what the highest command gives


def designed(kind: str, a: float, b: float) -> Controller[Any]:
    """A slow design: the longer its integral time, the more the noise of single samples is in its commands."""
    if kind == "state":
        gains = design(first_order(a, b), "state", settling=20, allow_fragile=True).gains
        assert isinstance(gains, StateGains)
        return StateFeedback(gains.ki, gains.ky, gains.ku)
    gains = design(first_order(a, b), "pi", settling=20).gains
    assert isinstance(gains, Gains)
    if kind == "pi_ff":
        return PiFf(gains.kp, gains.ki)
    return Pi(gains.kp, gains.ki) if kind == "pi" else Pid(gains.kp, gains.ki, 0.0)


def random_plant(seed: int) -> tuple[float, float]:
    random = np.random.default_rng(seed)
    return random.uniform(0.0, 0.95), float(random.choice([-1.0, 1.0])) * 10 ** random.uniform(-2, 2)


def saturated(seed: int, kind: str, noise: float) -> Run:
    """A random plant whose goal is out of reach for 300 samples, and then at half of what it can do."""
    a, b = random_plant(seed)
    reachable = b * HIGH / (1 - a)
    setup = Setup(
        first_order(a, b),
        designed(kind, a, b),
        lambda time: reachable * (GOAL if time < 300 else 0.5),
        samples=450,
        command=HIGH / 2,
        limits=(0.0, HIGH),
        sensor_noise=noise * abs(reachable),
        seed=seed,
    )
    return run_closed_loop(setup)


def with_conditional_integration(run: Run, pi: Pi) -> float:
    """The mean command of a PI that does not integrate at its limit, on the errors of a run."""
    integral, commands = HIGH / 2, []
    for error in run.goal - run.measurement:
        wanted = pi.kp * error + integral + pi.ki * error
        command = min(max(wanted, 0.0), HIGH)
        if command == wanted or (wanted - command) * pi.ki * error < 0:
            integral += pi.ki * error
        commands.append(command)
    return float(np.mean(commands[60:300]))


@pytest.mark.parametrize("kind", ["pi", "pid", "pi_ff", "state"])
@pytest.mark.parametrize("seed", range(6))
def test_noise_does_not_pull_a_saturated_command_off_its_limit(kind: str, seed: int) -> None:
    """At least as much as by conditional integration, which does not depend on the noise beyond the limit."""
    a, b = random_plant(seed)
    run, pi = saturated(seed, kind, noise=0.25), designed("pi", a, b)
    assert isinstance(pi, Pi)
    assert run.command[60:300].mean() >= 0.97 * with_conditional_integration(run, pi)


@pytest.mark.parametrize("kind", ["pi", "pid", "pi_ff", "state"])
@pytest.mark.parametrize("seed", range(6))
def test_a_long_time_at_the_limit_is_not_remembered(kind: str, seed: int) -> None:
    """The way down from the limit is the design's own: settled within twice the samples it is designed for."""
    run = saturated(seed, kind, noise=0.0)
    assert run.command[250:300] == pytest.approx(HIGH)
    assert run.measurement[340:] == pytest.approx(run.goal[340:], rel=0.02)


def test_an_actuator_that_others_moved_is_followed_at_once() -> None:
    """Also where the new value lies within the limits and the controller's own command did, too."""
    pi = Pi(kp=0.5, ki=0.02)
    state, _ = pi.step(pi.initial(5.0), Sample(0.0, 1.0, 20.0, 20.0, applied=5.0, limits=(0.0, HIGH)))
    _, action = pi.step(state, Sample(1.0, 1.0, 20.0, 20.0, applied=9.0, limits=(0.0, HIGH)))
    assert action.command == pytest.approx(9.0)
