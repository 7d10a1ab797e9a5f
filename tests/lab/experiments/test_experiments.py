"""Experiments on loops: the data support what the reports claim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flyball.cli import main
from flyball.lab import experiment


def _run(name: str, folder: Path) -> dict[str, object]:
    report = experiment.run(name, quick=True, seed=1, workdir=folder)
    path = experiment.write(report, name, folder, quick=True, seed=1)
    assert path.read_text().startswith(f"# {report.title}\n")
    assert (path.parent / "runs.svg").stat().st_size > 1000
    return dict(json.loads((path.parent / f"{name}.json").read_text()))


def test_prefetch_closed_loop(tmp_path: Path) -> None:
    found = _run("prefetch_closed_loop", tmp_path)["controllers"]
    assert isinstance(found, dict)
    assert found["PI"]["mean"] == pytest.approx(400.0, rel=0.02)
    assert found["PI"]["std"] == pytest.approx(found["PI"]["printed_std"], rel=0.02)  # calibrated
    assert found["P, no bias"]["mean"] == pytest.approx(0.62 * 400.0, rel=0.05)
    assert found["P at the working point"]["std"] > 1.3 * found["PI"]["std"]


def test_events_unmodelled_delay(tmp_path: Path) -> None:
    found = _run("events_unmodelled_delay", tmp_path)
    loops = found["loops"]
    assert isinstance(loops, dict)
    assert loops["the same PI, plant with delay 1"]["verdict"] == "unstable"
    assert loops["the same PI, plant with delay 1"]["pole_radius"] == pytest.approx(1.515, abs=1e-3)
    assert loops["the same PI, plant with delay 1"]["settling_samples"] is None
    assert loops["the same PI, plant with delay 1"]["swing_mb"] > 100.0
    for name in (
        "PI without delay in design and plant",
        "PI designed with the delay",
        "state feedback with predictor",
    ):
        assert loops[name]["settling_samples"] is not None
        assert loops[name]["swing_mb"] < 1.0
    assert found["printed_ki"] == {"verdict": "unstable", "pole_radius": pytest.approx(4.03, abs=0.01)}


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["lab", "--list", "--json"])
    assert end.value.code == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"prefetch_closed_loop", "events_unmodelled_delay"} <= set(listed)
    with pytest.raises(SystemExit) as end:
        main(["lab", "nothing"])
    assert end.value.code == 2
    assert "unknown experiment 'nothing'; choose from" in capsys.readouterr().err
