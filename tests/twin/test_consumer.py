"""The consumer plant obeys Little's law, and the consumer's decisions hold their goals on it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.consumer.policy.goals import ConsumerMeasurement
from flyball.control.controllers.fixed import Fixed
from flyball.control.controllers.pi import Pi
from flyball.control.step import ReasonCode
from flyball.errors import InvalidValue
from flyball.twin.consumer import ConsumerPlant, RunningConsumer, staircase
from flyball.twin.consumer_loop import Sensor, late, noisy, run_consumer
from flyball.twin.handler_laws import Gamma
from flyball.twin.workload import During, Normal, Poisson, Together

PRINTED_PI = Pi(kp=-0.0016, ki=0.0060)
S1_PUBLISHERS = Normal(mean_s=0.010, std_s=0.001, sources=25)


def _outside(rate: np.ndarray, goal: float, start: int) -> int:
    """Samples from `start` until the rate is within ±10 % of the goal and stays."""
    off = np.flatnonzero(np.abs(rate[start:] - goal) > 0.1 * goal)
    return int(off[-1]) + 1 if off.size else 0


def test_one_seed_gives_one_run() -> None:
    plant = ConsumerPlant(publishers=S1_PUBLISHERS, wander=0.05)
    first, again, other = (run_consumer(plant, "rate=400", samples=15, seed=seed) for seed in (3, 3, 4))
    assert first.rate.tolist() == again.rate.tolist()
    assert first.records == again.records
    assert first.rate.tolist() != other.rate.tolist()


@settings(max_examples=25)
@given(
    round_trip_s=st.floats(0.002, 0.05),
    handling_s=st.floats(0.0005, 0.02),
    window=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_below_capacity_the_gain_is_one_over_the_residence_time(
    round_trip_s: float, handling_s: float, window: int, seed: int
) -> None:
    plant = ConsumerPlant(round_trip_s, handling_s, client_s=0.0, handlers=50)
    _, rates = staircase(plant, [window], samples_each=4, seed=seed)
    assert rates[1:].mean() == pytest.approx(window / plant.residence_s(), rel=0.06, abs=1.0)


def test_linear_then_saturating() -> None:
    plant = ConsumerPlant(client_s=0.0005, handlers=4, handling_s=0.002)
    knee = plant.capacity_per_s() * plant.residence_s()
    assert plant.capacity_per_s() == 2000.0
    windows, rates = staircase(plant, list(range(1, 81)), samples_each=2, period_s=2.0)
    below = windows < 0.6 * knee
    slope = float(np.sum(windows[below] * rates[below]) / np.sum(windows[below] ** 2))
    assert slope == pytest.approx(1.0 / plant.residence_s(), rel=0.05)
    above = rates[windows > 1.8 * knee]
    assert above.mean() == pytest.approx(2000.0, rel=0.02)
    assert abs(np.polyfit(windows[windows > 1.8 * knee], above, 1)[0]) < 0.02 * slope


def test_the_sensor_agrees_with_littles_law() -> None:
    environment = simpy.Environment()
    consumer = RunningConsumer(ConsumerPlant(), environment, np.random.default_rng(1))
    consumer.set_window(12)
    environment.run(until=1.0)
    consumer.measure()
    environment.run(until=6.0)
    seen = consumer.measure()
    assert seen.used == pytest.approx(1.0)
    assert seen.rate_per_s is not None
    assert seen.residence_s is not None
    assert seen.rate_per_s * seen.residence_s == pytest.approx(12.0, rel=0.01)
    assert consumer.most_occupied == 12


def test_a_starving_consumer_says_so() -> None:
    environment = simpy.Environment()
    consumer = RunningConsumer(ConsumerPlant(publishers=Poisson(50.0)), environment, np.random.default_rng(1))
    consumer.set_window(12)
    environment.run(until=20.0)
    seen = consumer.measure()
    assert seen.rate_per_s == pytest.approx(50.0, rel=0.15)
    assert seen.used < 0.05
    assert seen.depth == 0.0


def test_lowering_the_window_takes_nothing_back_and_zero_closes_it() -> None:
    environment = simpy.Environment()
    consumer = RunningConsumer(ConsumerPlant(), environment, np.random.default_rng(1))
    consumer.set_window(9)
    environment.run(until=0.5)
    consumer.set_window(0)
    environment.run(until=1.0)
    consumer.measure()
    environment.run(until=2.0)
    assert consumer.measure().rate_per_s == 0.0
    assert consumer.most_occupied == 9


def test_the_default_holds_the_goal_of_the_prefetch_paper() -> None:
    run = run_consumer(ConsumerPlant(publishers=S1_PUBLISHERS, wander=0.03), "rate=400", samples=90)
    assert _outside(run.rate[:30], 400.0, 0) <= 3
    assert run.rate[5:].mean() == pytest.approx(400.0, rel=0.01)
    assert run.rate[5:].std() < 0.07 * 400.0
    assert run.rate.max() < 1.15 * 400.0


def test_an_empty_slot_between_two_messages_is_part_of_the_residence_time() -> None:
    """As on the embedded broker: 10 ms of handling, and 2 ms until the next message is claimed."""
    plant = ConsumerPlant(round_trip_s=0.0, handling_s=0.010, client_s=0.0, replacement_s=0.002)
    _, rates = staircase(plant, [6], samples_each=4)
    assert rates[1:].mean() == pytest.approx(6 / 0.012, rel=0.01)
    run = run_consumer(plant, lambda t: "rate=200" if t < 20.0 else "rate=500", samples=40)
    for goal, first in ((200.0, 1), (500.0, 21)):  # by the law itself: the trim is much slower
        assert run.rate[first : first + 4].mean() == pytest.approx(goal, rel=0.03)
        assert run.rate[first:][:19].mean() == pytest.approx(goal, rel=0.01)
    assert run.command[-1] == pytest.approx(500.0 * 0.012, rel=0.02)


def test_a_drought_says_nothing_about_the_time_in_which_places_are_empty() -> None:
    plant = ConsumerPlant(0.0, 0.010, client_s=0.0, replacement_s=0.002, publishers=Poisson(100.0))
    run = run_consumer(plant, "rate=400", samples=40)
    took_s = np.array([seen.residence_s for seen in run.measurements[5:]], dtype=float)
    assert took_s == pytest.approx(np.full(took_s.size, 0.012), rel=0.1)
    assert run.command[5:].max() < 1.1 * 400.0 * 0.012


def test_goals_in_turn() -> None:
    plant = ConsumerPlant(wander=0.03)
    goals = {0: 800.0, 1: 2400.0, 2: 1600.0}
    run = run_consumer(plant, lambda t: f"rate={goals[int(t // 20) % 3]}", samples=120)
    # a sample at the end of which the goal changed was made under the goal before
    in_force = np.concatenate([[800.0], run.goal[:-1]])
    within = np.abs(run.rate - in_force) <= 0.1 * in_force
    assert within.mean() >= 0.92


@pytest.mark.parametrize("samples_late", [0, 2])
def test_handlers_that_become_slower(samples_late: int) -> None:
    plant = ConsumerPlant(handling_s=lambda t: 0.010 if t < 30.0 else 0.020, handlers=64)
    sensor = late(samples_late) if samples_late else None
    run = run_consumer(plant, "rate=400", samples=70, sensor=sensor)
    assert _outside(run.rate, 400.0, 30) <= (10 if samples_late else 5)
    untouched = run_consumer(plant, "rate=400", Fixed(400.0 * plant.residence_s()), samples=70)
    assert untouched.rate[40:].mean() < 0.8 * 400.0  # the disturbance is one


def test_publishers_that_come_after_a_drought() -> None:
    quiet, burst = Normal(0.050, 0.005, sources=6), Normal(0.050, 0.005, sources=24)
    plant = ConsumerPlant(publishers=Together((quiet, During(burst, 40.0))))
    run = run_consumer(plant, "rate=400", samples=80)
    assert run.rate[10:39].mean() == pytest.approx(120.0, rel=0.02)
    assert _outside(run.rate, 400.0, 40) <= 5
    assert run.rate[40:].max() < 1.15 * 400.0  # nothing was wound up in the drought


def test_a_gain_that_drifts() -> None:
    plant = ConsumerPlant(round_trip_s=lambda t: 0.040 * 3.0 ** -min(1.0, max(0.0, t - 20.0) / 60.0))
    run = run_consumer(plant, "rate=400", samples=100)
    assert np.abs(run.rate[5:] - 400.0).max() < 0.1 * 400.0
    assert run.command[-1] < 0.45 * run.command[15]


def test_noise_of_the_metric_hardly_reaches_the_rate() -> None:
    plant = ConsumerPlant()
    ours = run_consumer(plant, "rate=400", samples=200, sensor=noisy(0.3, 5))
    printed = run_consumer(plant, "rate=400", PRINTED_PI, samples=200, sensor=noisy(0.3, 5))
    assert ours.rate[10:].std() <= 0.12 * 400.0
    assert ours.rate[10:].std() < printed.rate[10:].std()


def test_a_goal_out_of_reach_is_explained_and_not_fought() -> None:
    plant = ConsumerPlant(handling_s=0.010, handlers=4)  # 400/s is all there is
    run = run_consumer(plant, "rate=1000", samples=30)
    assert run.rate[10:].mean() == pytest.approx(400.0, rel=0.05)
    assert run.command.max() < 200.0
    assert run.command[10:].max() < 2.0 * plant.capacity_per_s() * plant.residence_s()
    assert any(record.code is ReasonCode.UNREACHABLE for record in run.records)


def test_capacity_keeps_the_handlers_busy_and_no_more() -> None:
    plant = ConsumerPlant(round_trip_s=0.010, handling_s=0.010, handlers=8)
    run = run_consumer(plant, "capacity", samples=60)
    knee = plant.capacity_per_s() * plant.residence_s()
    assert run.rate[20:].mean() > 0.95 * plant.capacity_per_s()
    assert run.command[20:].mean() < 2.0 * knee


def test_drain_by_empties_the_queue_in_time() -> None:
    backlog = During(Poisson(20_000.0), 0.0, 0.5)
    plant = ConsumerPlant(publishers=Together((backlog, Poisson(100.0))))
    run = run_consumer(plant, "drain-by=40", samples=60)
    assert run.depth[30] > 1000.0
    assert run.depth[41:].max() < 100.0


def test_the_window_is_never_exceeded() -> None:
    run = run_consumer(ConsumerPlant(wander=0.2), "rate=400", samples=40)
    assert run.most_occupied <= math.ceil(run.command.max())
    narrow = run_consumer(ConsumerPlant(wander=0.2), "rate=400", samples=20, limits=(0.05, 5.0))
    assert narrow.most_occupied <= 5


def test_sensors() -> None:
    told = [ConsumerMeasurement(float(k), 1.0, rate_per_s=100.0 * k) for k in range(5)]
    slow = late(2)
    assert [slow(one).rate_per_s for one in told] == [0.0, 0.0, 0.0, 100.0, 200.0]
    off = noisy(0.3, 1)
    rates = [off(replace(told[1])).rate_per_s for _ in range(4000)]
    assert np.std(np.array(rates, dtype=float)) == pytest.approx(30.0, rel=0.05)


def test_mistakes_are_refused() -> None:
    with pytest.raises(InvalidValue, match="must be >= 1, got 0"):
        ConsumerPlant(handlers=0)
    with pytest.raises(InvalidValue, match=r"round_trip_s must be a number >= 0, got -1"):
        ConsumerPlant(round_trip_s=-1.0)
    with pytest.raises(InvalidValue, match=r"must be later than start_s >= 0, got 5.0 and 1.0"):
        During(S1_PUBLISHERS, 5.0, 1.0)


@pytest.mark.parametrize(("goal", "handling_s"), [(10.0, 0.0), (10.0, 0.001), (2.0, 0.005), (50.0, 0.015)])
def test_a_rate_that_needs_less_than_one_message_at_a_time_is_exact_from_the_first_second(
    goal: float, handling_s: float
) -> None:
    plant = ConsumerPlant(handling_s=handling_s, round_trip_s=0.0, client_s=0.0)
    run = run_consumer(plant, f"rate={goal:g}", samples=30)
    assert np.abs(run.rate - goal).max() <= 1.0


def test_handlers_that_become_faster_never_exceed_the_rate_by_a_fifth() -> None:
    plant = ConsumerPlant(handling_s=lambda now_s: 0.1 if now_s < 30.0 else 0.002, round_trip_s=0.002)
    rate = run_consumer(plant, "rate=100", samples=60).rate
    assert np.convolve(rate, np.ones(3) / 3, "valid").max() <= 120.0
    assert rate[-20:].mean() == pytest.approx(100.0, rel=0.03)


@pytest.mark.parametrize("slower", [5.0, 10.0, 20.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_slower_handlers_are_held_at_what_they_can_do_now_and_recover(slower: float, seed: int) -> None:
    plant = ConsumerPlant(
        handling_s=lambda now_s: 0.01 * (slower if 30.0 <= now_s < 90.0 else 1.0),
        round_trip_s=0.0,
        client_s=0.0,
        handlers=8,
        wander=0.03,
    )
    run = run_consumer(plant, "rate=200", samples=120, seed=seed)
    reachable = plant.capacity_per_s(60.0)
    assert run.rate[32:40].mean() >= 0.85 * reachable  # within ten samples
    assert run.rate[40:90].mean() >= 0.9 * reachable
    assert run.command[70:90].mean() < 3.0 * plant.handlers
    assert any(record.code is ReasonCode.UNREACHABLE for record in run.records[30:50])
    assert run.rate[90:].max() <= 1.25 * 200.0
    assert np.convolve(run.rate[90:], np.ones(3) / 3, "valid").max() <= 1.2 * 200.0
    assert run.rate[93:].mean() == pytest.approx(200.0, rel=0.03)  # the trim has not wound up


@pytest.mark.parametrize("sensor", [noisy(0.3, 5), late(2)], ids=["noisy", "late"])
def test_a_rate_is_an_upper_bound_with_a_metric_of_ones_own(sensor: Sensor) -> None:
    plant = ConsumerPlant(handling_s=lambda t: 0.08 if 30.0 <= t < 45.0 else 0.02, law=Gamma(1.0))
    rate = run_consumer(plant, "rate=200", samples=80, sensor=sensor).rate
    assert np.convolve(rate[12:], np.ones(3) / 3, "valid").max() <= 1.2 * 200.0
    assert rate[55:].mean() == pytest.approx(200.0, rel=0.1)


def test_a_metric_may_count_in_another_unit() -> None:
    def doubled(seen: ConsumerMeasurement) -> ConsumerMeasurement:
        return replace(seen, rate_per_s=None if seen.rate_per_s is None else 2.0 * seen.rate_per_s)

    rate = run_consumer(ConsumerPlant(), "rate=400", samples=60, sensor=doubled).rate
    assert rate[45:].mean() == pytest.approx(200.0, rel=0.03)
