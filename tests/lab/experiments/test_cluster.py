"""The cluster's experiments: what their reports claim is what they found."""

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


def test_cluster_single_queue(tmp_path: Path) -> None:
    found = _run("cluster_single_queue", tmp_path)
    assert found["stable"]["1 + 1"]["growth_per_s"] > 100.0
    assert found["stable"]["1 + 2"]["growth_per_s"] == pytest.approx(0.0, abs=1.0)
    assert found["stable"]["1 + 3"] == found["stable"]["1 + 2"]
    limit = found["limit"]
    assert limit["6"] == pytest.approx(2 * limit["3"])
    assert limit["24"] == pytest.approx(limit["12"], rel=0.01)
    first, last = found["rate_by_length"].values()
    assert last < 0.7 * first


def test_cluster_placement(tmp_path: Path) -> None:
    cases = _run("cluster_placement", tmp_path)["cases"]
    for placement in ("order of connection", "worst"):
        shares = [cases[f"{placement}, {name}"]["of_fair"] for name in ("nothing", "exchange", "moves")]
        assert shares[0] < 0.95 * shares[1]
        assert shares[1] < 0.9
        assert shares[2] >= 0.97
        assert cases[f"{placement}, nothing"]["growth_per_s"] > 500.0
        assert cases[f"{placement}, moves"]["growth_per_s"] < 1.0
    assert cases["fair, moves"]["sessions_moved"] == 0


def test_cluster_growth(tmp_path: Path) -> None:
    found = _run("cluster_growth", tmp_path)
    assert found["gain"] > 1.85
    assert found["cases"]["static"]["added_s"] == []
    assert found["cases"]["capacity 12"]["added_s"] == [pytest.approx(12 * found["join_every_s"])]
    assert found["cases"]["capacity measured"]["nodes"] > 2


def test_cluster_churn(tmp_path: Path) -> None:
    cases = _run("cluster_churn", tmp_path)["cases"]
    for nodes in ("equal", "unequal"):
        ours, published = cases[f"{nodes}, with moves"], cases[f"{nodes}, published rules"]
        assert ours["worst_clients"] < 1.0
        assert published["worst_clients"] > 2.0
        assert published["sessions_moved"] == 0
        assert ours["nodes_added_or_marked"] < published["nodes_added_or_marked"]


def test_cluster_repair(tmp_path: Path) -> None:
    cases = _run("cluster_repair", tmp_path)["cases"]
    assert cases["no repair"]["full_again_s"] is None
    assert cases["no repair"]["lost_per_s"] == pytest.approx(0.5 * cases["no repair"]["before_per_s"], rel=0.05)
    assert cases["repair, spare node"]["full_again_s"] < 20.0
    assert all(case["messages_lost"] == 0 for case in cases.values())
    assert all(case["after_per_s"] >= 0.95 * case["before_per_s"] for case in cases.values())
