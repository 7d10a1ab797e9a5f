"""Quantiles stay within half a percent of the exact ones, in bounded memory."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flyball.histogram import Histogram


@given(
    values=st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=200),
    share=st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]),
)
def test_quantiles_are_those_of_the_sorted_values(values: list[float], share: float) -> None:
    histogram = Histogram()
    histogram.add_all(values)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    found = histogram.quantile(share)
    assert found is not None
    assert abs(found - exact) <= 0.0051 * exact
    assert histogram.largest == max(values)
    assert histogram.mean is not None
    assert math.isclose(histogram.mean, sum(values) / len(values))
    assert histogram.count == len(values)


def test_zero_and_empty() -> None:
    histogram = Histogram()
    assert (histogram.quantile(0.5), histogram.largest, histogram.mean) == (None, None, None)
    histogram.add(0.0, times=3)
    assert (histogram.quantile(0.5), histogram.count) == (0.0, 3)


def test_memory_does_not_grow_with_the_number_of_values() -> None:
    histogram = Histogram()
    histogram.add_all(0.001 + number / 1e6 for number in range(100_000))
    assert len(histogram._buckets) < 1000
