"""Arrivals: seeded, ordered, and as many as they promise."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import simpy

from flyball.errors import InvalidValue
from flyball.twin.workload import Bursts, Normal, Poisson, Steps, Together, Trace, Workload, counts, feed

ENDLESS: list[Workload] = [
    Poisson(20.0),
    Normal(0.01, 0.001, sources=25),
    Steps(((0.0, 5.0), (10.0, 50.0))),
    Bursts(100, every_s=5.0, spread_s=1.0),
    Together((Poisson(5.0), Bursts(10, every_s=3.0))),
]


def _first(workload: Workload, count: int, seed: int = 1) -> list[float]:
    return list(itertools.islice(workload.arrivals(np.random.default_rng(seed)), count))


@pytest.mark.parametrize("workload", ENDLESS)
def test_one_seed_one_run_and_time_never_goes_back(workload: Workload) -> None:
    times = _first(workload, 2000)
    assert times == _first(workload, 2000)
    assert times == sorted(times)
    assert times[0] >= 0.0


@pytest.mark.parametrize("workload", [Poisson(20.0), Normal(0.01, 0.001, sources=2)])
def test_another_seed_another_run(workload: Workload) -> None:
    assert _first(workload, 50, seed=1) != _first(workload, 50, seed=2)


def test_poisson_has_the_rate_and_the_variance_of_a_poisson_process() -> None:
    found = np.array(counts(Poisson(20.0), np.random.default_rng(4), period_s=1.0, periods=5000))
    assert found.mean() == pytest.approx(20.0, rel=0.02)
    assert found.var() == pytest.approx(20.0, rel=0.1)


def test_normal_gaps_are_those_of_the_prefetch_paper() -> None:
    gaps = np.diff(_first(Normal(0.010, 0.001), 20_000))
    assert gaps.mean() == pytest.approx(0.010, rel=0.01)
    assert gaps.std() == pytest.approx(0.001, rel=0.05)
    found = np.array(counts(Normal(0.010, 0.001, sources=25), np.random.default_rng(1), period_s=1.0, periods=20))
    assert found.mean() == pytest.approx(2500.0, rel=0.01)


def test_steps_follow_the_profile_of_the_publisher_paper() -> None:
    profile = ((0.0, 1.75), (100.0, 55.0), (300.0, 17.5), (500.0, 0.0), (600.0, 35.0))
    found = np.array(counts(Steps(profile), np.random.default_rng(2), period_s=1.0, periods=1000))
    assert found[:100].mean() == pytest.approx(1.75, rel=0.3)
    assert found[100:300].mean() == pytest.approx(55.0, rel=0.05)
    assert found[300:500].mean() == pytest.approx(17.5, rel=0.08)
    assert found[500:600].sum() == 0
    assert found[600:].mean() == pytest.approx(35.0, rel=0.05)


def test_bursts_come_on_time() -> None:
    assert counts(Bursts(1000, every_s=45.0), np.random.default_rng(1), period_s=15.0, periods=6) == [
        1000,
        0,
        0,
        1000,
        0,
        0,
    ]


def test_a_trace_is_replayed_faster() -> None:
    times = (10.0, 20.0, 20.0, 60.0)
    assert list(Trace(times, speed=50.0).arrivals(np.random.default_rng(1))) == [0.0, 0.2, 0.2, 1.0]


def test_feed_puts_arrivals_into_a_store_at_their_time() -> None:
    environment = simpy.Environment()
    store = simpy.Store(environment)
    feed(environment, Trace((0.0, 2.0, 5.0)), np.random.default_rng(1), store)
    environment.run(until=4.0)
    assert store.items == [0.0, 2.0]


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: Poisson(0.0), "number of arrivals a second > 0, got 0.0"),
        (lambda: Poisson(math.nan), "got nan"),
        (lambda: Normal(0.0, 1.0), "the mean gap must be a number of seconds > 0, got 0.0"),
        (lambda: Normal(1.0, -1.0), ">= 0, got -1.0"),
        (lambda: Normal(1.0, 1.0, sources=0), "at least one source, got 0"),
        (lambda: Steps(()), "must start at 0 s"),
        (lambda: Steps(((0.0, 1.0), (0.0, 2.0))), "start at 0 s and rise"),
        (lambda: Steps(((0.0, -1.0),)), r">= 0, got \[-1.0\]"),
        (lambda: Bursts(0, every_s=1.0), "at least one arrival, got 0"),
        (lambda: Bursts(1, every_s=1.0, spread_s=1.0), "got 1.0"),
        (lambda: Trace(()), "got none"),
        (lambda: Trace((2.0, 1.0)), "got 1.0 s after 2.0 s"),
        (lambda: Trace((1.0,), speed=0.0), "got 0.0"),
    ],
)
def test_mistakes_are_refused(mistake: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        mistake()
