"""The event pipeline on Spark: throughput beside plain jobs, and what control costs and brings."""

from __future__ import annotations

from collections.abc import Iterator

from flyball.errors import require
from flyball.lab.bench import BenchContext, Row
from flyball.lab.pipeline_cases import backlog, flow, kills, series, throughput


def run(context: BenchContext) -> Iterator[Row]:
    require("pyspark", "spark")
    for group in (throughput, flow, backlog, series, kills):
        context.note(f"  {group.__name__.rpartition('.')[2]} …")
        yield from group.cases(context)
