"""How a loop goes to a new goal: without a jump, with one where it is asked for, and sample by sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pi_ff import PiFf
from flyball.control.design.design import design
from flyball.control.gains import Gains
from flyball.control.models import Array, first_order
from flyball.loops.policy import Observation, Policy, decide, start


def commands(*, glide: bool) -> list[float]:
    """What follows when the goal doubles at the third sample of a loop at rest."""
    policy = Policy("window", PiFf(kp=0.0, ki=0.0, setpoint_gain=0.01), glide=glide)
    state, given = start(policy, 4.0), []
    for k, goal in enumerate((400.0, 400.0, 800.0, 800.0)):
        state, record = decide(policy, state, Observation(float(k), goal, 400.0))
        assert isinstance(record.command, float)
        given.append(record.command)
    return given


def test_without_gliding_a_new_goal_acts_at_once() -> None:
    assert commands(glide=False) == [4.0, 4.0, 8.0, 8.0]


def test_with_gliding_the_first_command_is_the_actuator_s_own_value() -> None:
    assert commands(glide=True) == [4.0, 4.0, 4.0, 6.0]


def follow(seed: int, goals: Callable[[np.random.Generator, int], Array], *, glide: bool) -> Array:
    """The errors of a PI on a random plant while its goal changes at every sample, relative to the first goal."""
    random = np.random.default_rng(seed)
    a, b = random.uniform(-0.3, 0.95), float(random.choice([-1.0, 1.0])) * 10 ** random.uniform(-3, 3)
    gains = design(first_order(a, b), "pi", settling=8).gains
    assert isinstance(gains, Gains)
    policy = Policy("random", Pi(gains.kp, gains.ki), glide=glide)
    y, errors = 0.0, []
    state = start(policy, 0.0)
    for k, goal in enumerate(goals(random, 200)):
        state, record = decide(policy, state, Observation(float(k), 100.0 * goal, y))
        errors.append((100.0 * goal - y) / 100.0)
        assert isinstance(record.command, float)
        y = a * y + b * record.command
    return np.array(errors)


def ramp(random: np.random.Generator, count: int) -> Array:
    return np.linspace(1.0, 1.0 + random.uniform(-4.0, 4.0), count)


def wave(random: np.random.Generator, count: int) -> Array:
    angles: Array = np.linspace(0.0, 2 * np.pi * count / random.uniform(40, 150), count)
    return 1.0 + 0.5 * np.sin(angles)


def walk(random: np.random.Generator, count: int) -> Array:
    return 1.0 + np.cumsum(random.normal(0.0, 0.01, count))


def flicker(random: np.random.Generator, count: int) -> Array:
    return 1.0 + 1e-6 * random.choice([0.0, 1.0], count)


@pytest.mark.parametrize("goals", [ramp, wave, walk, flicker])
@pytest.mark.parametrize("seed", range(10))
def test_a_goal_that_changes_at_every_sample_is_followed(
    seed: int, goals: Callable[[np.random.Generator, int], Array]
) -> None:
    """Almost as closely as by a loop that jumps, whatever the plant; before, the command never moved."""
    gliding, jumping = follow(seed, goals, glide=True), follow(seed, goals, glide=False)
    settled = slice(30, None)
    assert np.sqrt(np.mean(gliding[settled] ** 2)) <= 2.0 * np.sqrt(np.mean(jumping[settled] ** 2)) + 1e-3
    assert np.abs(gliding).max() <= 1.5 * np.abs(jumping).max() + 1e-3


def test_the_reaction_to_the_measurement_goes_on_while_the_goal_changes() -> None:
    """P of gain 2: one unit more of error from the measurement acts at once, one from the goal is faded in."""
    policy = Policy("p", PiFf(kp=2.0, ki=0.0))
    state, given = start(policy, 0.0), []
    for k, (goal, y) in enumerate(((10.0, 10.0), (11.0, 9.0), (11.0, 9.0), (11.0, 9.0))):
        state, record = decide(policy, state, Observation(float(k), goal, y))
        given.append(record.command)
    assert given == [0.0, 2.0, 3.0, 3.5]
