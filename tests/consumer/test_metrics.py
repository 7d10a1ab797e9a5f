"""What is measurement of a sample: rates, residence time, publishers."""

from __future__ import annotations

import pytest

from flyball.consumer.window_loop import WindowMetrics


def test_a_sample_counts_what_was_handed_over_and_what_was_finished() -> None:
    metrics = WindowMetrics()
    assert metrics.sample(10.0, None) is None
    metrics.handed += 30
    for _ in range(20):
        metrics.add_finished(0.010, None)
    metrics.tick(full=True, round_trip_s=0.005)
    measurement = metrics.sample(12.0, None)
    assert measurement is not None
    assert (measurement.rate_per_s, measurement.done_per_s) == (15.0, 10.0)
    assert measurement.residence_s == pytest.approx(0.015)


def test_a_moment_of_standing_still_does_not_count() -> None:
    metrics = WindowMetrics()
    metrics.sample(0.0, None)
    for tick in range(20):
        metrics.add_finished(0.3 if tick in (7, 8) else 0.010, None)
        metrics.tick(full=True, round_trip_s=0.0)
    measurement = metrics.sample(1.0, None)
    assert measurement is not None
    assert measurement.residence_s == pytest.approx(0.010)


def test_publishers_are_counted_between_two_looks_whenever_those_were() -> None:
    """600/s are published and 400/s handed over; looks and samples keep different time."""
    metrics, now_s, looks_s = WindowMetrics(), 0.0, [0.0, 0.9, 1.8, 2.7]
    found = []
    for sample in range(1, 4):
        while looks_s and looks_s[0] < sample:
            metrics.handed += round(400.0 * (looks_s[0] - now_s))
            now_s = looks_s.pop(0)
            metrics.add_depth(now_s, 200.0 * now_s)
        measurement = metrics.sample(float(sample), 200.0 * now_s)
        found.append(None if measurement is None else measurement.publish_per_s)
    assert found == [None, pytest.approx(600.0), pytest.approx(600.0)]  # the first sample has nothing before it
    measurement = metrics.sample(4.0, 200.0 * now_s)
    assert measurement is not None
    assert measurement.publish_per_s is None  # no new look: nothing is counted twice


def test_a_queue_with_plenty_lacks_nothing_and_an_empty_one_everything() -> None:
    metrics = WindowMetrics()
    metrics.sample(0.0, None)
    used = []
    for sample, beyond in enumerate((None, 1000.0, 0.0), start=1):
        metrics.tick(full=True, round_trip_s=0.0)
        metrics.tick(full=False, round_trip_s=0.0)
        measurement = metrics.sample(float(sample), 1000.0, beyond)
        assert measurement is not None
        used.append(measurement.used)
    assert used == [0.5, 1.0, 0.0]


def test_quantiles_of_a_fast_flow_rest_on_every_nth_message() -> None:
    metrics = WindowMetrics()
    metrics.sample(0.0, None)
    for sample in (1.0, 2.0):
        for number in range(50_000):
            metrics.add_finished(0.001 + number / 50_000, None)
        metrics.tick(full=True, round_trip_s=0.0)
        measurement = metrics.sample(sample, None)
        assert measurement is not None
        assert measurement.handling_p95_s == pytest.approx(0.951, rel=0.02)
        assert measurement.residence_s == pytest.approx(0.501, rel=0.001)
