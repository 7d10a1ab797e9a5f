"""Experiments on event processing, on lanes of the twin: the data support what the reports claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flyball.lab import experiment


def _run(name: str, folder: Path) -> dict[str, Any]:
    report = experiment.run(name, quick=True, seed=1, workdir=folder)
    path = experiment.write(report, name, folder, quick=True, seed=1)
    assert (path.parent / "runs.svg").stat().st_size > 1000
    found: dict[str, Any] = json.loads((path.parent / f"{name}.json").read_text())
    return found


def test_free_space_is_held_with_control_and_results_are_dropped_without(tmp_path: Path) -> None:
    found = _run("events_flow", tmp_path)
    for name, phase in found["phases"].items():
        if name != "start":  # the queue has to fill up first
            assert phase["held_within"] < 0.03, name
            assert max(phase["settled_intervals"]) <= 8, name
    assert max(found["dropped_mb"]) == 0.0
    assert min(found["dropped_mb_without_control"]) > 50.0


def test_balancing_limits_the_delay_that_grows_under_round_robin(tmp_path: Path) -> None:
    found = _run("events_balance", tmp_path)
    cases = found["cases"]
    assert (
        cases["round robin"]["cpu_load_second_half_p99_s"]
        > 1.5 * cases["round robin"]["cpu_load_first_half_p99_s"]
    )
    assert cases["control"]["cpu_load_second_half_p99_s"] < cases["control"]["cpu_load_first_half_p99_s"]
    assert (
        cases["control"]["cpu_load_second_half_p99_s"] < 0.2 * cases["round robin"]["cpu_load_second_half_p99_s"]
    )
    assert found["forgotten_delay"]["verdict"] == "unstable"
    forgetful = cases["control designed without its delay"]
    assert forgetful["share_std"] > 4 * cases["control"]["share_std"]


def test_lqr_moves_events_away_from_the_disturbed_one_of_many_lanes(tmp_path: Path) -> None:
    cases = _run("events_many_lanes", tmp_path)["cases"]
    for lanes in (3, 8):
        controlled, plain = cases[f"{lanes} lanes, control"], cases[f"{lanes} lanes, round robin"]
        assert controlled["cpu_load_p99_s"] < 0.2 * plain["cpu_load_p99_s"]
        assert controlled["share_of_disturbed"] == pytest.approx(0.4, abs=0.15)


def test_levels_of_a_hierarchy_do_not_slow_each_other_and_drop_nothing(tmp_path: Path) -> None:
    levels = _run("events_hierarchy", tmp_path)["levels"]
    assert [levels[name]["dropped_bytes"] for name in ("city", "state", "country")] == [0, 0, 0]
    assert levels["state"]["events_per_s"] == pytest.approx(levels["city"]["events_per_s"] / 4, rel=0.02)
    assert levels["country"]["events_per_s"] == pytest.approx(levels["city"]["events_per_s"] / 16, rel=0.02)
    assert levels["city"]["p99_s"] < levels["state"]["p99_s"] < levels["country"]["p99_s"]
    assert levels["country"]["most_waiting"] > 3 * levels["state"]["most_waiting"]
