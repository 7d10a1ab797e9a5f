"""Experiments on prefetch control, on the twin: the data support what the reports claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.lab import experiment


def test_prefetch_open_loop(tmp_path: Path) -> None:
    found = experiment.run("prefetch_open_loop", quick=True, seed=1, workdir=tmp_path).data
    assert found["gain"] == pytest.approx(80.7, rel=0.1)
    assert found["r2_test"] >= 0.8
    assert 18.0 <= found["linear_range"][1] <= 26.0


def test_prefetch_consumer(tmp_path: Path) -> None:
    found = experiment.run("prefetch_consumer", quick=True, seed=1, workdir=tmp_path).data["controllers"]
    assert found["PI"]["dithered"]["mean"] == pytest.approx(400.0, rel=0.02)
    assert found["P"]["dithered"]["mean"] == pytest.approx(400.0 * 0.807 / 1.807, rel=0.06)
    assert found["our default"]["dithered"]["settled"] < found["PI"]["dithered"]["settled"]
