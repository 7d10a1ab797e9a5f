"""A lane of the twin: its batch law, its result queue, and a CPU load."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import simpy

from flyball.errors import InvalidValue
from flyball.twin.lanes import LaneModel, LaneTwin


def lane(model: LaneModel, admit: Callable[[float, int], int] = lambda _, backlog: backlog) -> LaneTwin:
    return LaneTwin(simpy.Environment(), model, admit, np.random.default_rng(3))


def test_a_batch_takes_its_base_and_a_time_for_each_event_and_longer_under_cpu_load() -> None:
    one = lane(LaneModel(base_s=0.2, per_event_s=1e-4, noise=0.0))
    one.offer(3000)
    one.environment.run(until=1.0)
    one.set_cpu_load(0.5)
    one.offer(3000)
    one.environment.run(until=3.0)
    first, second = one.served.batches
    assert first.seconds == pytest.approx(0.5)
    assert second.seconds == pytest.approx(1.0, abs=0.02)
    assert [events for _, _, events in one.served.delays_s] == [3000, 3000]


def test_results_wait_until_they_are_read_and_excess_is_dropped() -> None:
    one = lane(LaneModel(base_s=0.1, per_event_s=0.0, result_bytes=10.0, noise=0.0, queue_bytes=1000.0))
    one.drain(100.0)
    one.offer(90)
    one.environment.run(until=0.15)
    assert one.queued_bytes == pytest.approx(895.0)
    one.environment.run(until=5.1)
    assert one.queued_bytes == pytest.approx(400.0, abs=2.0)
    one.offer(100)
    one.environment.run(until=5.25)
    assert one.dropped_bytes == pytest.approx(400.0, abs=15.0)
    assert one.appended_bytes + one.dropped_bytes == pytest.approx(1900.0)


def test_what_is_not_admitted_waits_at_the_input() -> None:
    one = lane(LaneModel(base_s=0.1, per_event_s=0.0, noise=0.0), lambda _, backlog: min(backlog, 10))
    one.offer(25)
    one.environment.run(until=0.15)
    assert (one.backlog, one.in_flight, one.events) == (5, 10, 10)
    one.environment.run(until=1.0)
    assert (one.backlog, one.in_flight, one.events) == (0, 0, 25)


def test_a_cpu_load_takes_less_than_everything() -> None:
    with pytest.raises(InvalidValue, match="must be >= 0 and < 1"):
        lane(LaneModel()).set_cpu_load(1.0)
