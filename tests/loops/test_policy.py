"""One step of a loop: time, modes, freezes, bumps, limits, guard, storage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.controllers.p import P
from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pid import Pid
from flyball.control.guard.guard import Guard
from flyball.control.record import LoopRecord
from flyball.control.step import Action, Controller, ReasonCode, Sample, Value
from flyball.control.wrappers import Ewma, Slew
from flyball.errors import InvalidValue
from flyball.loops.policy import (
    LoopState,
    Observation,
    Policy,
    decide,
    freeze,
    from_store,
    start,
    to_store,
    unfreeze,
    with_controller,
)

PI = Pi(kp=0.02, ki=0.006)
CONTROLLERS: list[Controller[Any]] = [
    PI,
    P(kp=0.01, bias=3.0),
    Pid(kp=0.002, ki=0.006, kd=0.002),
    Slew(Ewma(PI, keep=0.5), rise=2.0),
]


def _at(time: float, measurement: float | None, **more: Any) -> Observation:
    return Observation(time, more.pop("setpoint", 400.0), measurement, **more)


def _number(value: Value | None) -> float:
    assert isinstance(value, float)
    return value


def _settled(policy: Policy, command: float = 5.0) -> LoopState:
    """A loop that has been acting for a while, exactly at its goal."""
    state = start(policy, command)
    for k in range(3):
        state, _ = decide(policy, state, _at(float(k), 400.0))
    return state


def test_an_everyday_step_is_the_controllers_own() -> None:
    policy = Policy("rate", PI)
    state, record = decide(policy, start(policy, 5.0), _at(0.0, 300.0))
    _, action = PI.step(PI.initial(5.0), Sample(0.0, 1.0, 400.0, 300.0, 5.0))
    assert record.command == action.command == pytest.approx(5.6)
    assert record.parts == action.parts
    assert (record.loop, record.time, record.setpoint, record.measurement) == ("rate", 0.0, 400.0, 300.0)
    assert state.command == record.command


@pytest.mark.parametrize("mode", ["advise", "shadow"])
def test_modes_that_touch_nothing_still_propose(mode: Any) -> None:
    policy = Policy("rate", PI)
    state, record = decide(policy, start(policy, 5.0), _at(0.0, 300.0, mode=mode))
    assert record.command is None
    assert record.proposed == pytest.approx(5.6)
    assert state.command == 5.0


def test_shadow_follows_an_actuator_that_somebody_else_moves() -> None:
    policy = Policy("rate", PI)
    state = start(policy, 5.0)
    for k, position in enumerate((5.0, 9.0, 20.0)):
        state, record = decide(policy, state, _at(float(k), 400.0, applied=position, mode="shadow"))
        assert record.proposed == pytest.approx(position)  # at the goal: leave it where it is


def test_missed_samples_are_counted() -> None:
    policy = Policy("rate", PI, period_s=2.0)
    state, first = decide(policy, start(policy, 5.0), _at(0.0, 300.0))
    state, late = decide(policy, state, _at(2.3, 300.0))
    state, gap = decide(policy, state, _at(8.3, 300.0))
    _, nothing = decide(policy, state, _at(10.3, None))
    assert [first.missed, late.missed, gap.missed, nothing.missed] == [0, 0, 2, 1]


@pytest.mark.parametrize("time", [1.0, 0.5, math.nan, math.inf])
def test_a_sample_that_is_not_newer_is_ignored(time: float) -> None:
    policy = Policy("rate", PI)
    state, _ = decide(policy, start(policy, 5.0), _at(1.0, 300.0))
    after, record = decide(policy, state, _at(time, 100.0))
    assert after == state
    assert record.command is None
    assert record.code is ReasonCode.OUT_OF_ORDER


def test_a_frozen_actuator_stays_and_thaws_without_a_bump() -> None:
    policy = Policy("rate", PI)
    state = freeze(_settled(policy), "maintenance")
    for k in range(3, 6):
        state, record = decide(policy, state, _at(float(k), 100.0))
        assert record.command is None
        assert (record.frozen, record.reason, record.code) == (True, "maintenance", ReasonCode.FROZEN)
    position = state.command
    state, record = decide(policy, unfreeze(state), _at(6.0, 100.0))
    assert record.command == pytest.approx(position)
    state, record = decide(policy, state, _at(7.0, 100.0))
    assert _number(record.command) > _number(position)  # and then it acts


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_new_goal_does_not_bump_and_is_reached_for(controller: Controller[Any]) -> None:
    policy = Policy("rate", controller)
    state = _settled(policy)
    position = _number(state.command)
    commands = []
    for k in range(3, 33):
        state, record = decide(policy, state, _at(float(k), 400.0, setpoint=600.0))
        commands.append(_number(record.command))
    assert commands[0] == pytest.approx(position)
    assert commands[-1] > position + 1.0


def test_after_a_new_goal_the_glide_fades_out() -> None:
    """The glide fades out completely: a loop without memory ends exactly at its own command."""
    policy = Policy("rate", P(kp=0.01, bias=3.0))
    state = _settled(policy, 3.0)
    for k in range(3, 60):
        state, record = decide(policy, state, _at(float(k), 400.0, setpoint=600.0))
    assert state.gap is None
    assert record.command == pytest.approx(3.0 + 0.01 * 200.0, abs=1e-6)


@pytest.mark.parametrize("new", CONTROLLERS)
def test_new_gains_do_not_bump(new: Controller[Any]) -> None:
    policy = Policy("rate", Pi(kp=0.5, ki=0.001))
    state = _settled(policy)
    state, before = decide(policy, state, _at(3.0, 380.0))
    policy, state = with_controller(policy, state, new)
    state, after = decide(policy, state, _at(4.0, 380.0))
    assert after.command == pytest.approx(before.command)


def test_from_shadow_to_on_does_not_bump() -> None:
    policy = Policy("rate", P(kp=0.01, bias=3.0))
    state = start(policy, 12.0)
    state, seen = decide(policy, state, _at(0.0, 300.0, mode="shadow"))
    assert seen.proposed == pytest.approx(4.0)
    state, first = decide(policy, state, _at(1.0, 300.0, mode="on"))
    state, second = decide(policy, state, _at(2.0, 300.0, mode="on"))
    assert first.command == pytest.approx(12.0)
    assert second.command == pytest.approx(8.0)  # half of the gap of 8 is left


def test_the_guard_holds_an_actuator_that_lost_its_effect_and_tries_again_more_and_more_seldom() -> None:
    policy = Policy("rate", Pi(kp=0.0, ki=0.05), guard=Guard(patience=5))
    state = start(policy, 1.0)
    records = []
    for k in range(120):
        state, record = decide(policy, state, _at(float(k), 100.0 + k % 2))
        records.append(record)
    frozen = next(record for record in records if record.frozen)
    assert "did not answer" in frozen.alert
    assert frozen.command is None
    assert all((record.command is None) == record.frozen for record in records)
    holds = [sum(1 for _ in group) for held, group in groupby(record.frozen for record in records) if held]
    assert holds[:3] == [11, 21, 41]  # twice the patience, and the sample at which it was noticed
    while not record.frozen:
        state, record = decide(policy, state, _at(record.time + 1.0, 100.0 + record.time % 2))
    state, record = decide(policy, unfreeze(state), _at(record.time + 1.0, 100.0))
    assert record.command is not None


def test_a_missing_measurement_holds_only_as_long_as_it_lasts() -> None:
    policy = Policy("rate", PI, guard=Guard(missing_after=2))
    state = _settled(policy)
    for k in range(3, 8):
        state, record = decide(policy, state, _at(float(k), None, problem="the sensor raised OSError: gone"))
    assert record.frozen
    assert "missing" in record.alert
    assert (record.reason, record.code) == ("the sensor raised OSError: gone", ReasonCode.SENSOR_FAILED)
    _, record = decide(policy, state, _at(8.0, 390.0))
    assert record.command is not None


def test_in_shadow_the_guard_speaks_and_does_not_freeze() -> None:
    policy = Policy("rate", PI, guard=Guard(missing_after=1))
    state, record = decide(policy, start(policy, 5.0), _at(0.0, None, mode="shadow"))
    assert record.alert
    assert not record.frozen
    assert state.frozen is None


class _Broken:
    """A controller that breaks every promise."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def initial(self, command: Any) -> int:
        del command
        return 0

    def step(self, state: int, sample: Sample) -> tuple[int, Action]:
        del sample
        if isinstance(self.answer, Exception):
            raise self.answer
        return state, Action(self.answer)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (math.nan, ReasonCode.HELD_INVALID_COMMAND),
        (math.inf, ReasonCode.HELD_INVALID_COMMAND),
        ((1.0, 2.0), ReasonCode.HELD_INVALID_COMMAND),
        (ZeroDivisionError("1/0"), ReasonCode.HELD_CONTROLLER_FAILED),
    ],
)
def test_a_foreign_controller_that_breaks_its_promise_moves_nothing(answer: Any, code: ReasonCode) -> None:
    policy = Policy("rate", _Broken(answer), limits=(0.0, 10.0))
    _, record = decide(policy, start(policy, 5.0), _at(0.0, 300.0))
    assert record.command is None
    assert record.code is code


numbers = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-1e3, 1e3), st.none())
observations = st.builds(
    Observation,
    time=st.floats(allow_nan=True, allow_infinity=True),
    setpoint=st.one_of(st.floats(-1e3, 1e3), st.floats(allow_nan=True)),
    measurement=numbers,
    applied=numbers,
    mode=st.sampled_from(["advise", "shadow", "on"]),
    frozen=st.sampled_from([None, None, None, "by hand"]),
)


@given(
    controller=st.sampled_from(CONTROLLERS),
    seen=st.lists(observations, max_size=40),
    steps=st.lists(st.floats(-1.0, 5.0), min_size=40, max_size=40),
)
def test_whatever_is_observed_the_actuator_stays_within_its_limits(
    controller: Controller[Any], seen: list[Observation], steps: list[float]
) -> None:
    policy = Policy("rate", controller, limits=(1.0, 360.0), guard=Guard(patience=3, missing_after=2, swings=3))
    state, time = start(policy, 5.0), 0.0
    for observation, step in zip(seen, steps, strict=False):
        time += step
        timed = observation if not math.isfinite(observation.time) else replace(observation, time=time)
        state, record = decide(policy, state, timed)
        assert record.proposed is None or 1.0 <= _number(record.proposed) <= 360.0
        if record.command is None:
            continue
        assert 1.0 <= _number(record.command) <= 360.0
        assert timed.mode == "on"
        assert timed.frozen is None


@given(
    controller=st.sampled_from(CONTROLLERS),
    measured=st.lists(st.one_of(st.floats(0.0, 1e3), st.none()), min_size=2, max_size=30),
    goals=st.lists(st.sampled_from([400.0, 500.0]), min_size=31, max_size=31),
    cut=st.integers(0, 30),
)
def test_a_restored_loop_takes_the_same_next_actions(
    controller: Controller[Any], measured: list[float | None], goals: list[float], cut: int
) -> None:
    policy = Policy("rate", controller, limits=(1.0, 360.0), guard=Guard(patience=4, missing_after=2))
    state = start(policy, 5.0)
    restored: LoopState | None = None
    for k, (value, goal) in enumerate(zip(measured, goals, strict=False)):
        if k == min(cut, len(measured) - 1):
            restored = from_store(policy, json.loads(json.dumps(to_store(state))), 77.0)
        seen = _at(float(k), value, setpoint=goal)
        state, record = decide(policy, state, seen)
        if restored is not None:
            restored, again = decide(policy, restored, seen)
            assert again == record


def test_a_restored_loop_does_not_count_the_time_it_was_away() -> None:
    policy = Policy("rate", PI)
    state = from_store(policy, to_store(_settled(policy)), 0.0)
    _, record = decide(policy, state, _at(-1000.0, 390.0))  # the clock was set back meanwhile
    assert record.missed == 0
    assert record.command is not None


def test_vectors_keep_their_limits_and_glide() -> None:
    class Twice:
        def initial(self, command: Any) -> None:
            del command

        def step(self, state: None, sample: Sample) -> tuple[None, Action]:
            assert isinstance(sample.setpoint, tuple)
            return state, Action(tuple(2.0 * r for r in sample.setpoint))

    policy = Policy("lanes", Twice(), limits=(0.0, (5.0, 50.0)))
    state = start(policy, (1.0, 1.0))
    state, first = decide(policy, state, Observation(0.0, (1.0, 10.0), (0.0, 0.0)))
    assert first.command == (2.0, 20.0)
    state, change = decide(policy, state, Observation(1.0, (4.0, 30.0), (0.0, 0.0)))
    assert change.command == (2.0, 20.0)
    for k in range(2, 60):
        state, last = decide(policy, state, Observation(float(k), (4.0, 30.0), (0.0, 0.0)))
    assert last.command == (5.0, 50.0)
    assert last.saturated == 1


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: Policy("", PI), "name of a loop must not be empty"),
        (lambda: Policy("rate", PI, period_s=0.0), "number of seconds > 0, got 0.0"),
        (lambda: Policy("rate", PI, period_s=math.nan), "got nan"),
        (lambda: Policy("rate", PI, limits=(5.0, 1.0)), r"got \(5.0, 1.0\)"),
        (lambda: start(Policy("rate", PI), math.nan), "must be finite, got nan"),
        (lambda: start(Policy("rate", PI, limits=(0.0, (1.0, 2.0))), 1.0), "must fit the command"),
    ],
)
def test_mistakes_are_refused(mistake: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        mistake()


def test_a_record_tells_the_whole_story() -> None:
    policy = Policy("rate", PI, limits=(0.0, 5.2))
    _, record = decide(policy, start(policy, 5.0), _at(0.0, 300.0))
    assert isinstance(record, LoopRecord)
    assert (record.applied, record.command, record.saturated) == (5.0, 5.2, 1)
    assert record.reason.startswith("limited to 5.2")
    assert record.code is ReasonCode.SATURATED_HIGH
