"""Estimated capacity and ratio, on nodes with a known knee."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flyball.cluster.policy.capacity import (
    CapacityEstimator,
    CapacitySample,
    CapacityState,
    judge_ratio,
)
from flyball.errors import InvalidValue


def _run(
    clients: list[int], seed: int, *, publish: float = 475.0, deliver: float = 237.5, node: float = 3800.0
) -> CapacityState:
    """One sample of a noisy node for each number of clients, a third of them producers: C = 12 by default."""
    draw = np.random.default_rng(seed)
    estimator, state = CapacityEstimator(), CapacityState()
    for at, count in enumerate(clients):
        producers = count // 3
        consumers = count - producers
        demand = producers * publish * 2
        served = min(demand, node)
        # As measured on RabbitMQ: flat up to the knee, about 20 times at it, and further beyond it.
        latency = 0.001 if demand < 0.95 * node else 0.02 * max(1.0, demand / node) ** 2
        noise = draw.normal(1.0, 0.05, 3)
        state = estimator.update(
            state,
            CapacitySample(
                time_s=5.0 * at,
                producers=producers,
                consumers=consumers,
                published_per_s=served / 2 * noise[0],
                delivered_per_s=served / 2 * noise[1],
                latency_s=latency * noise[2],
                length=0,
                busy=min(1.0, served / 2 / (consumers * deliver)) if consumers else None,
            ),
        )
    return state


@pytest.mark.parametrize("seed", range(10))
def test_the_knee_is_found(seed: int) -> None:
    estimate = CapacityEstimator().capacity(_run([6] * 20 + [15] * 20, seed))
    assert estimate.value == pytest.approx(12.0, rel=0.08)
    assert estimate.text.startswith("measured: ")


@pytest.mark.parametrize("seed", range(5))
def test_unequal_nodes_differ(seed: int) -> None:
    half = CapacityEstimator().capacity(_run([3] * 20 + [9] * 20, seed, node=1900.0))
    assert half.value == pytest.approx(6.0, rel=0.08)


@pytest.mark.parametrize("seed", range(5))
def test_the_ratio_is_found_whether_consumers_wait_or_not(seed: int) -> None:
    ratio = CapacityEstimator().consumers_per_producer(_run([6] * 20, seed))
    assert ratio.value == pytest.approx(2.0, rel=0.08)
    fast = CapacityEstimator().consumers_per_producer(_run([6] * 20, seed, deliver=475.0))  # busy half the time
    assert fast.value == pytest.approx(1.0, rel=0.08)


def test_progress_is_told() -> None:
    estimator = CapacityEstimator()
    assert estimator.capacity(CapacityState()).text == "0 of 12 samples at low load; 0 of 12 samples at full load"
    low = estimator.capacity(_run([6] * 20, 1))
    assert low.value is None
    assert low.text == "0 of 12 samples at full load: it serves more than 6 clients"
    some = estimator.capacity(_run([6] * 20 + [15] * 7, 1))
    assert some.value is None
    assert some.text == "7 of 12 samples at full load, ready in about 25 s"
    assert estimator.consumers_per_producer(_run([6] * 7, 1)).text == (
        "7 of 12 samples of producers, ready in about 25 s; 7 of 12 samples of consumers, ready in about 25 s"
    )


def test_configured_values_take_precedence() -> None:
    state = _run([6] * 20 + [15] * 20, 1)
    assert CapacityEstimator().capacity(state, configured=30).value == 30.0
    assert CapacityEstimator().consumers_per_producer(state, configured=3.0).value == 3.0


def test_a_node_that_became_slower_gets_another_estimate() -> None:
    estimator = CapacityEstimator()
    state = _run([6] * 20 + [15] * 20, 1)
    for at in range(60):
        state = estimator.update(state, CapacitySample(200.0 + 5.0 * at, 5, 10, 950.0, 950.0, 0.03, 0, 1.0))
    assert estimator.capacity(state).value == pytest.approx(6.0, rel=0.1)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 0.0, None])
def test_useless_samples_change_nothing(wrong: float | None) -> None:
    estimator = CapacityEstimator()
    assert estimator.update(CapacityState(), CapacitySample(0.0, 1, 1, 10.0, 10.0, wrong)) == CapacityState()


def test_a_node_without_clients_says_nothing() -> None:
    estimator = CapacityEstimator()
    state = estimator.update(CapacityState(), CapacitySample(0.0, 0, 0, 0.0, 0.0, 0.001))
    assert state.demand_per_s.samples == 0


def test_too_few_consumers_are_reported() -> None:
    assert judge_ratio(4, 8, 2.0) is None
    assert judge_ratio(3, 4, 4 / 3) is None
    found = judge_ratio(5, 9, 2.0)
    assert found is not None
    assert found.text == "5 producers need 10 consumers, there are 9: the queues grow"


@pytest.mark.parametrize("options", [{"needed": 0}, {"keep": 1.0}, {"idle_below": 5.0}, {"memory_s": math.nan}])
def test_estimators_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidValue, match="CapacityEstimator"):
        CapacityEstimator(**options)  # type: ignore[arg-type]
