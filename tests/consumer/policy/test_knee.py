"""Capacity and latency: the knee is found, and the queue says how far it is worth going."""

from __future__ import annotations

import math

from flyball.consumer.policy.knee import Knee
from flyball.control.step import Sample


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
    assert found[-1] == 800.0 * 0.01 * 1.25 + 1.0
    assert max(found) <= 16.0  # one step too far shows that messages wait for each other


def test_an_unknown_queue_is_felt_for() -> None:
    controller = Knee()
    seen = (math.nan, 0.01, 1.0, math.nan, math.nan, 100.0, 0.01, 100.0)
    _, action = controller.step(controller.initial(1.0), Sample(0.0, 1.0, 100.0, 100.0, 1.0, seen))
    assert action.command == 2.0
