"""A loop whose controller knows where to go need not glide to a new goal."""

from __future__ import annotations

from flyball.control.controllers.pi_ff import PiFf
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
