"""What a worker is told is what its starter knew, whatever the config holds; lanes keep to their cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyball.app.config import RunConfig
from flyball.loops.toml import load_toml
from flyball.pipeline.run.worker import WorkerSpec

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", ["pipeline.toml", "hierarchy/lyon.toml", "hierarchy/country.toml"])
def test_an_order_comes_out_of_its_file_as_it_went_in(tmp_path: Path, name: str) -> None:
    config = load_toml(EXAMPLES / name, RunConfig).pipeline
    order = WorkerSpec("sqlite:///x.db", config, tmp_path, tuple(sys.path))
    order.save(tmp_path / "order")
    assert WorkerSpec.load(tmp_path / "order") == order


PINNED = """
import os, subprocess, threading
from flyball.pipeline.run import worker
child = subprocess.Popen(["sleep", "600"])
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
worker._pin((0,))
print([sorted(os.sched_getaffinity(pid)) for pid in (0, child.pid, thread.native_id)])
child.kill()
stop.set()
"""


def test_a_lane_keeps_to_its_cores_with_its_threads_and_all_that_it_started() -> None:
    if 0 not in os.sched_getaffinity(0):
        pytest.skip("core 0 is not ours")
    run = subprocess.run(
        [sys.executable, "-c", PINNED], capture_output=True, text=True, check=True, start_new_session=True
    )
    assert run.stdout.strip() == "[[0], [0], [0]]"
