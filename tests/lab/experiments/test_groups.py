"""Experiments on groups: the data support what the reports claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flyball.lab import experiment


def _run(name: str, folder: Path) -> dict[str, Any]:
    report = experiment.run(name, quick=True, seed=1, workdir=folder)
    path = experiment.write(report, name, folder, quick=True, seed=1)
    assert (path.parent / "runs.svg").stat().st_size > 1000
    return dict(report.data)


def test_groups_ownership(tmp_path: Path) -> None:
    faults = _run("groups_ownership", tmp_path)["faults"]
    assert all(found["broker"]["twice_s"] == 0.0 for found in faults.values())
    reliable = [found for name, found in faults.items() if "calls" not in name and name != "timeline"]
    assert max(found["broker"]["longest_unowned_s"] for found in reliable) <= 8.0
    assert faults["none"]["client"] == faults["none"]["broker"]
    assert faults["1 of 6 cut off for 40 s"]["client"]["twice_s"] > 50.0
    assert faults["timeline"]["client"]["twice_s"] > 10.0


def test_groups_modes(tmp_path: Path) -> None:
    """Real processes: how long a queue is unread depends on the machine, that one member reads it does not."""
    report = experiment.run("groups_modes", quick=True, seed=1, workdir=tmp_path)
    path = experiment.write(report, "groups_modes", tmp_path, quick=True, seed=1)
    assert (path.parent / "members.svg").stat().st_size > 1000
    killed = report.data["kill"]
    assert killed["broker"]["twice_s"] == 0.0
    assert killed["broker"]["unowned_s"] > 0.0
    assert killed["client"]["unowned_s"] > 0.0


def test_groups_load(tmp_path: Path) -> None:
    found = _run("groups_load", tmp_path)
    assert found["moves an hour at low load"]["ours"] == 0.0
    assert found["moves an hour at low load"]["theirs"] > 100.0
    least = found["least utilisation of the slow member / mean"]
    assert least["theirs"] < 0.5 < 0.8 < least["ours"]
    assert found["spread after three decisions"]["ours"] <= 1.15
    most = found["queues of one member while 36 of 40 are idle"]
    assert most["theirs"] >= 36.0
    assert most["ours"] == 10.0
