"""Capacity and latency: the knee is found, and the queue says how far it is worth going."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flyball.consumer.policy.goals import ConsumerDisturbances
from flyball.consumer.policy.knee import Knee
from flyball.control.controllers.fixed import Fixed
from flyball.control.step import ReasonCode, Sample
from flyball.twin.consumer import ConsumerPlant
from flyball.twin.consumer_loop import run_consumer
from flyball.twin.handler_laws import Bimodal, Constant, Gamma, HandlerLaw, LogNormal, Pareto
from flyball.twin.workload import Poisson


def windows(
    publish: float, backlog: float, samples: int, capacity: float = 800.0
) -> tuple[list[float], list[float]]:
    """Handlers that take 10 ms on a queue with publishers; the windows in force and what waited after each."""
    controller = Knee()
    state, window, found, depths = controller.initial(1.0), 1.0, [], []
    for k in range(samples):
        most = min(window / 0.01, capacity)
        rate = min(most, backlog + publish)
        backlog += publish - rate
        residence_s = max(0.01, window / capacity) if rate == most else 0.01
        used = 1.0 if rate == most else 0.0
        seen = (math.nan, residence_s, used, backlog, publish, rate, residence_s, rate)
        found.append(window)
        depths.append(backlog)
        state, action = controller.step(state, Sample(float(k), 1.0, rate, rate, window, seen))
        assert isinstance(action.command, float)
        window = action.command
    return found, depths


def test_a_backlog_is_met_by_feed_forward() -> None:
    found, depths = windows(publish=300.0, backlog=0.0, samples=8)
    assert found[:3] == [1.0, 4.0, (300.0 + 100.0) * 0.01 * 1.25 + 1.0]
    assert depths[2] == 0.0


def test_beyond_the_knee_the_queue_is_no_argument() -> None:
    found, _ = windows(publish=5000.0, backlog=1e6, samples=20)
    assert found[-1] == pytest.approx(800.0 * 0.01 * 1.25 + 1.0, rel=0.05)
    assert max(found) <= 16.0  # one step too far shows that messages wait for each other


def test_an_unknown_queue_is_felt_for() -> None:
    controller = Knee()
    seen = (math.nan, 0.01, 1.0, math.nan, math.nan, 100.0, 0.01, 100.0)
    _, action = controller.step(controller.initial(1.0), Sample(0.0, 1.0, 100.0, 100.0, 1.0, seen))
    assert action.command == 2.0


LAWS = [Gamma(1.0), LogNormal(1.0), LogNormal(2.0), Bimodal(0.2, 50.0), Pareto(1.7)]


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize(("handling_s", "handlers"), [(0.1, 16), (0.01, 4)])
def test_irregular_handlers_do_all_that_they_can(law: HandlerLaw, handling_s: float, handlers: int) -> None:
    plant = ConsumerPlant(0.002, handling_s, client_s=0.0, handlers=handlers, law=law)
    run = run_consumer(plant, "capacity", samples=60, seed=2)
    best = run_consumer(plant, "rate=1e6", Fixed(2.0 * handlers), window=2.0 * handlers, samples=60, seed=2)
    assert run.rate[15:].mean() >= 0.9 * best.rate[15:].mean()
    assert run.command[15:].mean() <= 4.0 * handlers + 4.0


@pytest.mark.parametrize("law", [Constant(), Gamma(0.2)], ids=str)
def test_handlers_that_become_slower_are_not_taken_for_waiting(law: HandlerLaw) -> None:
    slow = (30.0, 50.0)
    plant = ConsumerPlant(
        0.002, lambda t: 0.05 * (8.0 if slow[0] <= t < slow[1] else 1.0), client_s=0.0, handlers=16, law=law
    )
    run = run_consumer(plant, "capacity", samples=70, seed=2)
    best = run_consumer(plant, "rate=1e6", Fixed(24.0), window=24.0, samples=70, seed=2)
    for begin, end in ((10, 30), (32, 50), (52, 70)):
        assert run.rate[begin:end].mean() >= 0.85 * best.rate[begin:end].mean()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_latency_is_held_with_irregular_handlers(seed: int) -> None:
    plant = ConsumerPlant(0.0, 0.1, client_s=0.0, handlers=16, law=Gamma(1.0), publishers=Poisson(100.0))
    run = run_consumer(plant, "latency=1.0", samples=60, seed=seed)
    p95_s = np.array([measured.latency_p95_s for measured in run.measurements[10:]], dtype=float)
    assert (p95_s <= 1.0).mean() >= 0.97
    assert run.depth[-1] < 50.0


def test_a_latency_out_of_reach_is_explained() -> None:
    beyond = ConsumerPlant(0.0, 0.05, client_s=0.0, handlers=8, publishers=Poisson(200.0))  # 160/s are all
    run = run_consumer(beyond, "latency=0.5", samples=40)
    assert run.records[-1].code is ReasonCode.UNREACHABLE
    assert "more than that is waiting" in run.records[-1].reason
    assert run.rate[10:].mean() >= 0.95 * 160.0
    slow = ConsumerPlant(0.0, 0.5, client_s=0.0, handlers=8, publishers=Poisson(8.0))
    run = run_consumer(slow, "latency=0.3", samples=40)
    assert any("no window makes that less" in record.reason for record in run.records[10:])
    assert run.depth[-1] < 10.0  # it does what it can all the same


def test_where_more_in_flight_makes_all_of_it_slower_the_rate_tells() -> None:
    """A machine that shares its processors: the quickest messages show nothing, for they take no time at all."""
    controller = Knee()
    state, window = controller.initial(1.0), 1.0
    for k in range(60):
        rate = min(window / 0.05, 200.0)
        residence_s = window / rate
        measured = ConsumerDisturbances(
            residence_s=residence_s, used=1.0, rate_per_s=rate, done_per_s=rate, handling_low_s=1e-4
        )
        state, action = controller.step(state, Sample(float(k), 1.0, rate, rate, window, measured))
        assert isinstance(action.command, float)
        window = action.command
    assert 10.0 <= window <= 8.0 * 10.0
