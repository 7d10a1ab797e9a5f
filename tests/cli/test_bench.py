"""flyball bench, with a benchmark that fails on its way or is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyball.cli import bench as command
from flyball.errors import InvalidValue
from flyball.lab import bench
from flyball.testing.faults import small_disk
from tests.cli.programs import FLYBALL


def test_rows_measured_before_a_failure_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, **_: Any) -> Iterator[bench.Row]:
        yield bench.BenchContext(name, True, 1, tmp_path, print).row("first", 2.0, "s", goal=3.0)
        raise InvalidValue("the server is gone")

    monkeypatch.setattr(bench, "run", run)
    with pytest.raises(InvalidValue, match="the server is gone"):
        command.command(["loops"], results=tmp_path)
    (results,) = tmp_path.glob("*.json")
    assert [(row["case"], row["met"]) for row in json.loads(results.read_text())["rows"]] == [("first", True)]


def test_sigterm_leaves_no_file_system_mounted(tmp_path: Path) -> None:
    def mounts() -> list[str]:
        return [line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line]

    with small_disk(tmp_path / "probe") as no_disk:
        if no_disk is not None:
            pytest.skip(no_disk)
    with subprocess.Popen(
        [*FLYBALL, "bench", "brokers", "--only", "faults", "--quick", "--results", str(tmp_path / "results")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
    ) as child:
        while not mounts():
            assert child.poll() is None
            time.sleep(0.05)
        child.terminate()
        child.communicate()
    assert child.returncode == 128 + signal.SIGTERM
    assert not mounts()
