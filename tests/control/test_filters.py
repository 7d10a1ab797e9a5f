from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.filters import ewma, ewma_over_time, median

finite = st.floats(-1e100, 1e100)


@given(st.lists(finite, min_size=1, max_size=30), st.floats(0.0, 0.999))
def test_ewma_stays_between_the_extremes(values: list[float], keep: float) -> None:
    average = None
    for value in values:
        average = ewma(average, value, keep)
    assert average is not None
    slack = 1e-12 * max(map(abs, values))
    assert min(values) - slack <= average <= max(values) + slack


def test_ewma_answers_a_step_as_its_pole_says() -> None:
    average: float | None = 0.0
    for _ in range(10):
        average = ewma(average, 1.0, 0.8)
    assert average == pytest.approx(1.0 - 0.8**10)


def test_ewma_passes_the_promised_part_of_the_variance() -> None:
    rng, average, seen = random.Random(7), None, []
    for _ in range(20_000):
        average = ewma(average, rng.gauss(0.0, 1.0), 0.9)
        seen.append(average)
    assert statistics.pvariance(seen) == pytest.approx(0.1 / 1.9, rel=0.1)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=20))
def test_ewma_over_time_depends_on_the_time_not_on_the_sampling(gaps: list[float]) -> None:
    average: float | None = 0.0
    for gap in gaps:
        average = ewma_over_time(average, 1.0, gap, time_constant_s=5.0)
    assert average == pytest.approx(1.0 - math.exp(-sum(gaps) / 5.0))


def test_ewma_over_time_ignores_a_clock_that_ran_backwards() -> None:
    assert ewma_over_time(3.0, 99.0, -1.0, 5.0) == 3.0


@given(st.lists(finite, min_size=1, max_size=30), st.integers(1, 7))
def test_median_is_that_of_the_last_values(values: list[float], size: int) -> None:
    window: tuple[float, ...] = ()
    for value in values:
        window, middle = median(window, value, size)
    assert middle == pytest.approx(statistics.median(values[-size:]))


def test_median_ignores_outliers_that_an_average_would_smear() -> None:
    window: tuple[float, ...] = ()
    seen = []
    for k in range(50):
        window, middle = median(window, 1e6 if k % 5 == 3 else 10.0, 3)
        seen.append(middle)
    assert set(seen) <= {10.0, 500_005.0}  # the latter only while the window holds two values
    assert seen[4:] == [10.0] * 46
