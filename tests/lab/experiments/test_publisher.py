"""The publisher's experiments: what their reports claim is what they found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flyball.lab import experiment


def _run(name: str, folder: Path) -> dict[str, Any]:
    report = experiment.run(name, quick=True, seed=1, workdir=folder)
    path = experiment.write(report, name, folder, quick=True, seed=1)
    assert path.read_text().startswith(f"# {report.title}\n")
    assert (path.parent / "runs.svg").stat().st_size > 1000
    return dict(json.loads((path.parent / f"{name}.json").read_text()))


def test_publisher_load(tmp_path: Path) -> None:
    loads = _run("publisher_load", tmp_path)["loads"]
    best = [found["best_fixed"] for found in loads.values()]
    assert best[0] == 1
    assert best == sorted(best)
    for found in loads.values():
        for controller in ("batch-aimd", "auto"):
            means = [one["mean_s"] for one in found[controller].values()]
            assert max(means) == pytest.approx(min(means), rel=0.02)
        assert found["auto"]["1"]["mean_s"] < min(one["mean_s"] for one in found["untuned"].values())


def test_publisher_steps(tmp_path: Path) -> None:
    controllers = _run("publisher_steps", tmp_path)["controllers"]
    by_load = {step["load"]: step["mean_n"] for step in controllers["batch-aimd"].values()}
    assert by_load[1.75] < by_load[17.5] < by_load[35.0] < by_load[55.0]
    assert all(step["recovery_s"] in (None, 0.0) for step in controllers["auto"].values())


def test_publisher_congestion(tmp_path: Path) -> None:
    cases = _run("publisher_congestion", tmp_path)["cases"]
    for name, by_vacation in cases.items():
        drops = [sum(one["dropped"]) for one in by_vacation.values()]
        assert (drops[-1] > 100) if name.startswith("untuned") else (max(drops) == 0)
