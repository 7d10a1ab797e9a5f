"""Threads of a pipeline wait for a broker that is away, and end at any other failure."""

from __future__ import annotations

import threading
import time

import pytest

from flyball.brokers.port import NoSuchChannel, Unreachable
from flyball.pipeline.logs.writer import is_outage
from flyball.pipeline.run.step_thread import StepThread


def test_a_step_that_cannot_reach_its_broker_is_tried_until_it_can() -> None:
    calls: list[str] = []
    done = threading.Event()

    def step() -> bool:
        calls.append("step")
        if calls.count("step") <= 3:
            raise Unreachable("no answer")
        done.set()
        return False

    thread = StepThread("combiner", step, 0.01, is_outage, lambda: calls.append("recover"))
    thread.start()
    thread.wait_until(done.is_set)
    thread.stop()
    thread.check()
    assert calls[:8] == ["step", "recover", "step", "recover", "step", "recover", "step", *calls[7:8]]
    assert "recover" not in calls[7:], "only after a failure"


def test_an_outage_that_lasts_is_reported_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    def step() -> bool:
        if "the combiner waits" not in caplog.text:
            raise Unreachable("no answer")
        return False

    thread = StepThread("combiner", step, 0.01, is_outage)
    thread.start()
    while "the combiner continues after" not in caplog.text:
        thread.check()
        time.sleep(0.02)
    thread.stop()
    assert caplog.text.count("the combiner waits, and tries again and again: no answer") == 1


def test_any_other_failure_ends_the_thread() -> None:
    def step() -> bool:
        raise NoSuchChannel("there is no log 'results'")

    thread = StepThread("combiner", step, 0.01, is_outage)
    thread.start()
    with pytest.raises(NoSuchChannel):
        thread.wait_until(lambda: False)
    thread.stop()
