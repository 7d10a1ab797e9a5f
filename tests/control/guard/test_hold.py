"""A controller that the guard has stopped acts again when the cause is gone or was not the loop."""

from __future__ import annotations

import cmath
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from flyball.control.controllers.pi import Pi
from flyball.control.design.design import design
from flyball.control.gains import Gains
from flyball.control.guard.guard import Guard
from flyball.control.models import first_order
from flyball.loops.policy import Observation, Policy, decide, freeze, from_store, start, to_store, unfreeze
from flyball.twin.closed_loop import Setup, run_closed_loop

GOAL = 100.0


def designed(a: float, b: float) -> Pi:
    gains = design(first_order(a, b), "pi", settling=8).gains
    assert isinstance(gains, Gains)
    return Pi(gains.kp, gains.ki)


def random_plant(seed: int) -> tuple[float, float, np.random.Generator]:
    random = np.random.default_rng(seed)
    return random.uniform(0.0, 0.9), float(random.choice([-1.0, 1.0])) * 10 ** random.uniform(-2, 2), random


@pytest.mark.parametrize("seed", range(8))
def test_a_load_that_swings_is_not_the_loop(seed: int) -> None:
    """The guard stops the controller, sees that the swing goes on, and lets it attenuate the load again."""
    a, b, random = random_plant(seed)
    pi, period = designed(a, b), random.uniform(25, 120)
    # as large a load as leaves a swing of 20 % under control
    z = cmath.exp(2j * math.pi / period)
    load = 0.2 * GOAL * abs((z - a) * (1 + b / (z - a) * (pi.kp + pi.ki * z / (z - 1))))
    setup = Setup(
        first_order(a, b),
        pi,
        GOAL,
        samples=round(60 * period),
        command=GOAL * (1 - a) / b,
        disturbance=lambda time: load * math.sin(2 * math.pi * time / period),
        guard=Guard(),
        seed=seed,
    )
    run = run_closed_loop(setup)
    stopped = [record.frozen for record in run.records]
    assert any(stopped)
    assert not any(stopped[round(30 * period) :])
    assert any("the load moves it" in record.alert for record in run.records)
    alone = run_closed_loop(replace(setup, guard=None))
    last = slice(round(-20 * period), None)
    assert run.measurement[last].std() == pytest.approx(alone.measurement[last].std(), rel=0.05)


@pytest.mark.parametrize("seed", range(8))
def test_a_loop_that_swings_by_itself_stays_stopped(seed: int) -> None:
    """Gains three times too large on a plant with a delay that they were not designed for."""
    a, b, _ = random_plant(seed)
    gains = designed(a, b)
    setup = Setup(
        first_order(a, b, 2),
        Pi(3 * gains.kp, 3 * gains.ki),
        GOAL,
        samples=600,
        command=0.9 * GOAL * (1 - a) / b,
        limits=_limits(a, b),
        guard=Guard(),
        seed=seed,
    )
    run = run_closed_loop(setup)
    first = next(k for k, record in enumerate(run.records) if record.frozen)
    assert all(record.frozen for record in run.records[first:])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gain", [0.0, -1.0], ids=["lost", "inverted"])
@pytest.mark.parametrize("goal_after", [GOAL, 1.5 * GOAL])
def test_a_gain_that_comes_back_is_used_again(seed: int, gain: float, goal_after: float) -> None:
    """For 150 samples the command has no effect, or the wrong one; then it has its own, perhaps at a new goal."""
    a, b, random = random_plant(seed)
    policy = Policy("x", designed(a, b), guard=Guard(), limits=_limits(a, b))
    state, y = start(policy, GOAL * (1 - a) / b), GOAL
    outputs, frozen = [], []
    for k in range(900):
        goal = GOAL if k < 120 else goal_after
        state, record = decide(policy, state, Observation(float(k), goal, y + 0.3 * random.standard_normal()))
        state = from_store(policy, json.loads(json.dumps(to_store(state))), state.command) if k == 130 else state
        assert isinstance(state.command, float)
        broken = 100 <= k < 250
        y = a * y + (gain if broken else 1.0) * b * state.command + (0.5 * GOAL * (1 - a) if broken else 0.0)
        outputs.append(y)
        frozen.append(record.frozen)
    assert not any(frozen[850:])
    assert np.mean(outputs[850:]) == pytest.approx(goal_after, rel=0.02)


def test_a_person_s_freeze_is_not_lifted_by_the_guard() -> None:
    policy = Policy("x", designed(0.5, 1.0), guard=Guard())
    state = freeze(start(policy, 50.0), "maintenance")
    for k in range(200):
        state, record = decide(policy, state, Observation(float(k), GOAL, GOAL))
        assert record.frozen
        assert record.command is None
    state, record = decide(policy, unfreeze(state), Observation(200.0, GOAL, GOAL))
    assert not record.frozen


def _limits(a: float, b: float) -> tuple[float, float]:
    low, high = sorted((0.0, 4 * GOAL * (1 - a) / b))
    return low, high
