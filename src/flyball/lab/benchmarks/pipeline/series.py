"""A model for each of many series in one job: the time it takes, and how that grows with their number."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flyball.errors import require
from flyball.lab.bench import BenchContext, Row
from flyball.pipeline.many_series import Recording, identify_series
from flyball.pipeline.run.session import spark_session

_SAMPLES = 100
_SERIES_A_FILE = 50_000


def cases(context: BenchContext) -> Iterator[Row]:
    """`many series`: the time for 1,000,000, fewer with --quick; `linear`: time a series, of most by few."""
    sizes = (20_000, 60_000) if context.quick else (250_000, 500_000, 1_000_000)
    spark = spark_session("benchmark", workdir=context.workdir / "series")
    seconds: dict[int, float] = {}
    try:
        for size in (sizes[0], *sizes):  # the first run only warms up
            folder = context.workdir / f"series-{size}"
            if not folder.exists():
                _record(folder, size, context.seed)
            recording = Recording(folder, "loop_id", "time", "command", "measurement")
            began_s = time.monotonic()
            identify_series(spark, recording, context.workdir / f"models-{size}-{len(seconds)}-{began_s}")
            seconds[size] = time.monotonic() - began_s
            context.note(f"  {size:,} series: {seconds[size]:.1f} s")
    finally:
        spark.stop()
    largest = sizes[-1]
    # With fewer series the bound shrinks with them: ten minutes for a million.
    yield context.row("many series", seconds[largest], f"s for {largest:,} × {_SAMPLES}", goal=600 * largest / 1e6)
    few, most = (seconds[size] / size for size in (sizes[0], largest))
    yield context.row("many series linear", most / few, "× time a series", goal=1.2)


def _record(folder: Path, series: int, seed: int) -> None:
    """Write telemetry of that many loops, as rows in the order of time."""
    pa, pq = require("pyarrow", "spark"), require("pyarrow.parquet", "spark")
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for first in range(0, series, _SERIES_A_FILE):
        count = min(_SERIES_A_FILE, series - first)
        a, b = rng.uniform(0.1, 0.8, count), rng.uniform(1.0, 60.0, count)
        u = rng.integers(1, 22, (_SAMPLES, count)).astype(float)
        y = np.zeros((_SAMPLES, count))
        for k in range(1, _SAMPLES):
            y[k] = a * y[k - 1] + b * u[k - 1] + rng.normal(0.0, 1.0, count)
        table = pa.table(
            {
                "loop_id": np.tile(np.arange(first, first + count), _SAMPLES),
                "time": np.repeat(np.arange(float(_SAMPLES)), count),
                "command": u.ravel(),
                "measurement": y.ravel(),
            }
        )
        pq.write_table(table, folder / f"{first:09}.parquet")
