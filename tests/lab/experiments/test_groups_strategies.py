"""The experiments on groups: what their reports claim is what they found."""

from __future__ import annotations

import json
from pathlib import Path

from flyball.lab import experiment


def test_groups_strategies(tmp_path: Path) -> None:
    report = experiment.run("groups_strategies", quick=True, seed=1, workdir=tmp_path)
    path = experiment.write(report, "groups_strategies", tmp_path, quick=True, seed=1)
    assert (path.parent / "runs.svg").stat().st_size > 1000
    found = json.loads((path.parent / "groups_strategies.json").read_text())
    assert found["worked_example"] == {
        "three": {"C0": [1, 4, 7], "C1": [2, 5, 8], "C2": [3, 6]},
        "two": {"C0": [1, 4, 5, 7], "C2": [2, 3, 6, 8]},
    }
    strategies = found["strategies"]
    sticky = strategies["sticky"]
    assert sticky["worst_balance"] <= 0.5
    assert sticky["moves"] == sticky["fewest"]
    for name in ("averagely", "averagely-by-circle"):
        assert abs(strategies[name]["balance"] - sticky["balance"]) < 1e-9
        assert strategies[name]["moves"] > 3 * strategies[name]["fewest"]
    assert strategies["consistent-hash"]["balance"] > 3 * sticky["balance"]
    others = [one for name, one in strategies.items() if name != "sticky"]
    assert all(sticky["stickiness"] > one["stickiness"] for one in others)
