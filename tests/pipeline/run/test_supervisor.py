"""Processes that die are started again; what they leave behind is ended first, by whoever comes next."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flyball.pipeline.policy import failures
from flyball.pipeline.run.queries import PipelineFailed
from flyball.pipeline.run.supervisor import BROKER_AWAY, FOR_GOOD, Supervisor
from flyball.processes.process import start_time

# A process with a child of its own, as a lane has Spark's JVM.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
from flyball.pipeline.run.supervisor import say_ready
say_ready()
time.sleep(600)
"""


def started(file: Path) -> list[tuple[int, int]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(pid), int(child)) for pid, child in map(str.split, lines)]


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def check_for_ever(supervisor: Supervisor) -> None:
    while True:
        supervisor.check()
        time.sleep(0.01)


def test_who_is_killed_is_started_again_after_its_children_are_gone(tmp_path: Path) -> None:
    supervisor, file = Supervisor(tmp_path), tmp_path / "pids"
    supervisor.open()
    try:
        supervisor.start("lane", [sys.executable, "-c", PARENT, str(file)])
        for round_ in range(1, 4):
            until(lambda: supervisor.is_ready("lane"))
            pid, child = started(file)[-1]
            assert supervisor.pids() == {"lane": pid}
            assert len(started(file)) == round_
            os.kill(pid, signal.SIGKILL)
            while len(started(file)) == round_:
                time.sleep(0.01)
            assert start_time(child) is None
        assert supervisor.restarts() == {"lane": 3}
        supervisor.check()
    finally:
        supervisor.close()
    assert all(start_time(pid) is None for pair in started(file) for pid in pair)


AWAY_FIRST = """
import sys
from pathlib import Path
tries = Path(sys.argv[1])
count = len(tries.read_text()) if tries.exists() else 0
tries.write_text("x" * (count + 1))
if count < 8:
    sys.exit(int(sys.argv[2]))
from flyball.pipeline.run.supervisor import say_ready
say_ready()
import time
time.sleep(600)
"""


def test_who_cannot_reach_its_broker_is_started_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "LONGEST_S", 0.2)
    supervisor, file = Supervisor(tmp_path), tmp_path / "tries"
    supervisor.open()
    try:
        supervisor.start("combiner", [sys.executable, "-c", AWAY_FIRST, str(file), str(BROKER_AWAY)])
        while not supervisor.is_ready("combiner"):
            supervisor.check()
            time.sleep(0.02)
        assert supervisor.restarts() == {"combiner": 8}
    finally:
        supervisor.close()


def test_who_fails_at_once_again_and_again_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.open()
    try:
        supervisor.start("combiner", [sys.executable, "-c", "raise SystemExit('the disk is full')"])
        with pytest.raises(PipelineFailed, match=r"combiner ended 6 times in a row.*the disk is full"):
            check_for_ever(supervisor)
    finally:
        supervisor.close()


def test_who_says_that_it_would_fail_again_is_not_tried_again(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.open()
    said = f"import sys; sys.stderr.write('no such column'); sys.exit({FOR_GOOD})"
    try:
        supervisor.start("lane", [sys.executable, "-c", said])
        with pytest.raises(PipelineFailed, match=r"lane cannot continue, see .*no such column"):
            check_for_ever(supervisor)
        assert supervisor.restarts() == {"lane": 0}
    finally:
        supervisor.close()


def test_a_new_supervisor_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    first, file = Supervisor(tmp_path), tmp_path / "pids"
    first.open()
    first.start("lane", [sys.executable, "-c", PARENT, str(file)])
    until(lambda: first.is_ready("lane"))
    ((pid, child),) = started(file)
    record = json.loads((tmp_path / "lane.json").read_text())
    assert record["pid"] == pid
    # The child alone is left, as Spark's JVM may be; the record of its parent is all there is to go by.
    first._stopping.set()
    first._thread.join()
    os.kill(pid, signal.SIGKILL)
    until(lambda: start_time(pid) is None)
    assert start_time(child) is not None
    second = Supervisor(tmp_path)
    second.open()
    second.close()
    assert start_time(child) is None
    first.close()
