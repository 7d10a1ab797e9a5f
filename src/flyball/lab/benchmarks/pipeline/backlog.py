"""A backlog at the start: memory while it is processed, beside a source that reads it all at once.

Memory is that of the driver, of Spark and of its Python workers together. A first, smaller run warms Spark up.
`backlog memory` is the difference between the largest use and the use when a fifth was done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flyball.errors import FlyballError
from flyball.lab.bench import BenchContext, Row
from flyball.lab.process_memory import MemoryWatch
from flyball.lab.rigs.pipeline import load
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.run.inline import InlinePipeline
from flyball.pipeline.run.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MB = 1e6
_ALL_AT_ONCE = 100_000_000
_LONGEST_S = 180.0


def cases(context: BenchContext) -> Iterator[Row]:
    events = 1_000_000 if context.quick else 5_000_000
    folder = context.workdir / "backlog"
    folder.mkdir()
    hosts, url = folder / "hosts.csv", f"sqlite:///{folder / 'broker.db'}"
    load.write_hosts(hosts)
    load.fill(url, load.bodies(events, context.seed))
    spark = spark_session("benchmark", workdir=folder)
    try:
        _memory_growth(spark, url, load.config(hosts, name="warm", rules=False), folder / "warm", events // 4)
        ours = _memory_growth(spark, url, load.config(hosts, name="ours", rules=False), folder / "ours", events)
        uncontrolled = load.config(
            hosts, name="loose", rules=False, max_rows=_ALL_AT_ONCE, lanes={"control": False}
        )
        peer = _memory_growth(spark, url, uncontrolled, folder / "loose", events)
    finally:
        spark.stop()
    yield context.row(
        "backlog memory",
        ours / MB,
        f"MB more, {events:,} events",
        peer=peer / MB,
        peer_name="no admission",
        goal=0.25,
    )


def _memory_growth(spark: SparkSession, url: str, config: PipelineConfig, folder: Path, events: int) -> int:
    """Measure the bytes by which memory grew after a fifth of the events (from the start if read all at once)."""
    folder.mkdir()
    pipeline = InlinePipeline(url, config, folder, spark=spark)
    fifth = 0
    with MemoryWatch() as memory:
        pipeline.start()
        deadline_s = time.monotonic() + _LONGEST_S
        try:
            while pipeline.totals.events_in < events and time.monotonic() < deadline_s:
                pipeline.check()
                if pipeline.totals.events_in < events / 5:
                    fifth = len(memory.samples)
                time.sleep(0.1)
        except FlyballError:
            pass  # too large a batch ends a query; its memory until then counts
        finally:
            pipeline.stop()
    sizes = [size for _, size in memory.samples]
    begin = 0 if pipeline.totals.events_in < events or fifth >= len(sizes) * 4 // 5 else fifth
    return max(sizes) - sizes[begin]
