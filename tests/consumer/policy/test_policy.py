"""The consumer's decisions on simple plants: goals are reached, jumps are followed, limits are told."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.consumer.policy.controller import FIRST_WINDOW, WINDOW_LIMITS, guard_for, make_controller
from flyball.consumer.policy.goals import (
    ConsumerDisturbances,
    ConsumerMeasurement,
    DrainBy,
    Goal,
    Latency,
    Rate,
    TargetState,
    compute_target,
    parse_goal,
)
from flyball.consumer.policy.knee import Knee
from flyball.consumer.policy.little import Little
from flyball.consumer.policy.retry import RetryPolicy, decide_after_failure
from flyball.control.record import LoopRecord
from flyball.control.step import ReasonCode
from flyball.errors import InvalidValue
from flyball.loops.policy import Observation, Policy, decide, start
from flyball.testing.controllers import check_controller


@dataclass
class Plant:
    """rate = window / residence up to `capacity`; beyond it messages wait inside the window."""

    residence_s: float
    capacity: float = math.inf

    def rate(self, window: float) -> float:
        return min(window / self.residence_s, self.capacity)


def run(
    goal: Goal,
    plant: Plant,
    samples: int,
    at: dict[int, Plant] | None = None,
    publishers: Callable[[int], float] = lambda _: math.inf,
) -> list[LoopRecord]:
    controller = make_controller(goal)
    policy = Policy("test", controller, limits=WINDOW_LIMITS, guard=guard_for(controller), glide=False)
    state, aiming, window, records = start(policy, FIRST_WINDOW), TargetState(), FIRST_WINDOW, []
    for k in range(1, samples + 1):
        plant = (at or {}).get(k, plant)
        could = plant.rate(window)
        rate, residence_s = min(could, publishers(k)), window / could
        used = 1.0 if rate == could else 0.0
        seen = ConsumerMeasurement(
            float(k), 1.0, rate, residence_s, used, 10_000.0 * used, residence_s, residence_s, rate
        )
        aiming, target = compute_target(goal, aiming, seen)
        state, record = decide(
            policy, state, Observation(float(k), target.setpoint, target.measurement, None, target.disturbances)
        )
        if isinstance(record.command, float):
            window = record.command
        records.append(record)
    return records


@given(st.floats(5.0, 5000.0), st.floats(0.001, 0.5))
def test_little_meets_any_rate_in_one_sample(goal: float, residence_s: float) -> None:
    if not WINDOW_LIMITS[0] < goal * residence_s < WINDOW_LIMITS[1]:
        return
    records = run(Rate(goal), Plant(residence_s), 5)
    assert [record.measurement for record in records[1:]] == pytest.approx([goal] * 4)


def test_a_handler_that_becomes_twice_as_slow_is_met_within_three_samples() -> None:
    records = run(Rate(400.0), Plant(0.017), 30, at={15: Plant(0.034)})
    assert records[14].measurement == pytest.approx(200.0)
    assert [record.measurement for record in records[17:]] == pytest.approx([400.0] * 13, rel=0.1)


def test_a_moment_of_stalling_hardly_moves_the_window() -> None:
    records = run(Rate(400.0), Plant(0.017), 30, at={15: Plant(0.17), 16: Plant(0.017)})
    assert max(record.command for record in records[14:] if isinstance(record.command, float)) < 1.5 * 6.8


def test_a_drought_leaves_the_window_where_the_goal_needs_it() -> None:
    records = run(Rate(400.0), Plant(0.017), 40, publishers=lambda k: 120.0 if k < 20 else 600.0)
    commands = [record.command for record in records[1:]]
    assert commands == pytest.approx([6.8] * 39, rel=0.01)
    assert records[10].code is ReasonCode.STARVED
    assert records[20].measurement == pytest.approx(400.0, rel=0.01)  # the burst finds it there


def test_a_window_that_is_too_wide_is_cut_even_where_messages_are_lacking() -> None:
    """The residence time reads twice what it is, and publishers send less than the window would take."""
    policy = Policy("test", Little(), limits=WINDOW_LIMITS, glide=False)
    state, window = start(policy, 13.6), 13.6
    for k in range(60):
        rate = min(window / 0.017, 600.0)
        disturbances = ConsumerDisturbances(
            residence_s=0.034, used=1.0 if rate < 600.0 else 0.0, rate_per_s=rate, done_per_s=rate
        )
        state, record = decide(policy, state, Observation(float(k), 400.0, rate, None, disturbances))
        assert isinstance(record.command, float)
        window = record.command
    assert rate == pytest.approx(400.0, rel=0.02)


def test_jitter_of_the_residence_time_does_not_move_the_window() -> None:
    rng = random.Random(5)
    records = run(
        Rate(400.0), Plant(0.017), 60, at={k: Plant(0.017 * rng.uniform(0.992, 1.008)) for k in range(60)}
    )
    commands = [record.command for record in records[1:] if isinstance(record.command, float)]
    moves = [abs(after - before) for before, after in itertools.pairwise(commands)]
    assert sum(move > 0 for move in moves) <= 3
    assert sum(moves) < 0.05 * 6.8  # without a rest 0.14 * 6.8


def test_what_is_off_by_less_than_is_worth_a_move_is_corrected_all_the_same() -> None:
    """Little's law misses 0.8 %: less than `rest`, but it stays, and so it adds up."""
    policy = Policy("test", Little(), limits=WINDOW_LIMITS, glide=False)
    state, window, rates = start(policy, 6.8), 6.8, []
    for k in range(60):
        rates.append(0.992 * window / 0.017)
        disturbances = ConsumerDisturbances(
            residence_s=0.017, used=1.0, rate_per_s=rates[-1], done_per_s=rates[-1]
        )
        state, record = decide(policy, state, Observation(float(k), 400.0, rates[-1], None, disturbances))
        assert isinstance(record.command, float)
        window = record.command
    assert rates[0] == pytest.approx(396.8)
    assert rates[-20:] == pytest.approx([400.0] * 20, rel=0.005)


def test_a_goal_out_of_reach_says_what_is_reachable_and_rests() -> None:
    records = run(Rate(1000.0), Plant(0.01, capacity=400.0), 120)
    assert records[-1].code is ReasonCode.UNREACHABLE
    reachable = float(records[-1].reason.split("reachable is about ")[1].split("/s")[0])
    assert reachable == pytest.approx(400.0, rel=0.03)
    windows = [record.command for record in records[20:] if isinstance(record.command, float)]
    assert max(windows) < 10.0  # 400/s of 10 ms are 4 places
    assert records[-1].saturated == 1


def test_capacity_that_comes_back_is_used_again() -> None:
    records = run(Rate(1000.0), Plant(0.01, capacity=400.0), 200, at={60: Plant(0.01)})
    assert records[-1].measurement == pytest.approx(1000.0, rel=0.05)


def test_capacity_finds_the_knee_and_follows_slower_handlers() -> None:
    goal = parse_goal("capacity")
    records = run(goal, Plant(0.01, capacity=800.0), 120, at={60: Plant(0.03, capacity=800.0)})
    windows = [record.command for record in records]
    assert windows[50] == pytest.approx(11.0, rel=0.1)  # 8 at work, a quarter and one to spare
    assert records[50].measurement == 800.0
    assert records[-1].measurement == 800.0  # 24 are needed now


def test_latency_cuts_the_window_where_handling_takes_too_long() -> None:
    records = run(Latency(0.05), Plant(0.01, capacity=100.0), 60)
    assert isinstance(records[-1].command, float)
    assert records[-1].command / 100.0 <= 0.05


def test_a_drain_aims_at_its_deadline() -> None:
    state, depth, rate, time_s = TargetState(), 6000.0, 0.0, 0.0
    for _ in range(60):
        state, target = compute_target(
            DrainBy(60.0), state, ConsumerMeasurement(time_s, 1.0, rate, 0.01, 1.0, depth)
        )
        rate = target.setpoint
        depth, time_s = max(0.0, depth + 50.0 - rate), time_s + 1.0
    assert depth < 120.0


@pytest.mark.parametrize("controller", [Little(), Knee(), Knee(p95_s=0.5)])
def test_little_and_knee_keep_the_contract_of_controllers(controller: Little | Knee) -> None:
    check_controller(controller, disturbances=(1.0, 0.017, 1.0, 10.0, 10.0, 400.0, 0.02), first_move=math.inf)


@pytest.mark.parametrize("text", ["", "rate=", "rate=fast", "rate=0", "latency=-1", "drain", "drain-by=nan"])
def test_goals_that_are_none(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_goal(text)


@given(st.integers(0, 20), st.integers(1, 40), st.floats(0.0, 30.0))
def test_retries_are_bounded_in_number_and_wait_for_the_given_delay(
    retries: int, failures: int, delay_s: float
) -> None:
    decision = decide_after_failure(RetryPolicy(retries), failures, "ValueError: x", delay_s)
    assert (decision.action, decision.delay_s) == (
        ("retry", delay_s) if failures <= retries else ("dead-letter", 0.0)
    )
