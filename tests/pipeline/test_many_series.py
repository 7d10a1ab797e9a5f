"""Many series in one job: each gets the model that it gets alone, whatever the order of the rows in the file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flyball.control.identification.identify import identify
from flyball.errors import InvalidValue
from flyball.pipeline.many_series import Recording, identify_series


def recorded(path: Path, seed: int) -> dict[str, tuple[Any, Any]]:
    """40 series of different length in shuffled rows; returns each in order."""
    rng = np.random.default_rng(seed)
    series: dict[str, tuple[Any, Any]] = {}
    rows: list[tuple[str | None, float, float, float]] = []
    for number in range(40):
        size = int(rng.integers(30, 90))
        u = rng.integers(1, 40, size).astype(float)
        y = np.zeros(size)
        for k in range(1, size):
            y[k] = 0.4 * y[k - 1] + (number + 1) * u[k - number % 2] + rng.normal(0, 1)
        if number == 7:
            u[:] = 3.0
        series[f"loop-{number}"] = (u, y)
        rows += [(f"loop-{number}", float(k), u[k], y[k]) for k in range(size)]
    rows.append((None, 0.0, 1.0, 1.0))
    random.Random(seed).shuffle(rows)
    columns = dict(zip(("loop_id", "time", "command", "measurement"), zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), path)
    return series


@pytest.mark.parametrize("options", [{}, {"delay": 0, "align": "next", "offset": False}])
def test_each_series_gets_its_own_model(spark: SparkSession, tmp_path: Path, options: dict[str, Any]) -> None:
    seed = random.randrange(10**6)
    series = recorded(tmp_path / "t.parquet", seed)
    recording = Recording(tmp_path / "t.parquet", "loop_id", "time", "command", "measurement")
    identify_series(spark, recording, tmp_path / "models", **options)
    models = {row["loop_id"]: row for row in pq.read_table(tmp_path / "models").to_pylist()}
    assert set(models) == set(series)
    for name, (u, y) in series.items():
        found = models[name]
        if name == "loop-7":
            assert (found["problem"], found["a"], found["delay"]) == ("the input is constant", None, None)
            continue
        one = identify(u, y, whole_range=True, method="least squares", **options)
        assert found["problem"] is None
        assert (found["delay"], found["align"]) == (one.model.delay, one.align), (seed, name)
        expected = [one.model.a[0], one.model.b[0], one.model.offset, one.r2, one.rmse, one.r2_free_run]
        got = [found[key] for key in ("a", "b", "c", "r2", "rmse", "r2_free_run")]
        assert got == pytest.approx(expected, rel=1e-6, abs=1e-8), (seed, name)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"by": "loop"}, "there is no column 'loop' for --by; there are: loop_id, time, command, measurement"),
        ({"output": "loop_id"}, "the column 'loop_id' for --output is string, not a number"),
        ({"path": Path("absent.parquet")}, "there is no file 'absent.parquet'"),
    ],
)
def test_a_recording_that_cannot_be_used_is_refused(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    recorded(tmp_path / "t.parquet", 1)
    keys = {"path": tmp_path / "t.parquet", "by": "loop_id", "time": "time", "input": "command"}
    with pytest.raises(InvalidValue) as refusal:
        Recording(**{**keys, "output": "measurement", **change}).rows()
    assert complaint in str(refusal.value)


def test_lists_of_numbers_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": ["a"], "time": [0.0], "u": pa.array([1], pa.int16()), "y": [[1, 2]]}), path)
    Recording(path, "id", "time", "u", "u").rows()
    with pytest.raises(InvalidValue, match=r"the column 'y' for --output is list<.*>, not a number"):
        Recording(path, "id", "time", "u", "y").rows()
