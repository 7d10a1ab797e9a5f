"""flyball bench, with a benchmark that fails on its way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyball.cli import bench as command
from flyball.errors import InvalidValue
from flyball.lab import bench


def test_rows_measured_before_a_failure_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, **_: Any) -> Iterator[bench.Row]:
        yield bench.BenchContext(name, True, 1, tmp_path, print).row("first", 2.0, "s", goal=3.0)
        raise InvalidValue("the server is gone")

    monkeypatch.setattr(bench, "run", run)
    with pytest.raises(InvalidValue, match="the server is gone"):
        command.command(["loops"], results=tmp_path)
    (results,) = tmp_path.glob("*.json")
    assert [(row["case"], row["met"]) for row in json.loads(results.read_text())["rows"]] == [("first", True)]
