"""The event pipeline on Spark: throughput beside plain jobs, and what control costs and brings."""

from __future__ import annotations

from collections.abc import Iterator

from flyball.errors import require
from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.pipeline import backlog, cpu_load, flow, kills, series, throughput

_CASES = {
    "throughput": throughput.cases,
    "flow": flow.cases,
    "disturbed": cpu_load.cases,
    "backlog": backlog.cases,
    "series": series.cases,
    "kills": kills.cases,
}
GROUPS = tuple(_CASES)


def run(context: BenchContext) -> Iterator[Row]:
    require("pyspark", "spark")
    for group in filter(context.wants, GROUPS):
        context.note(f"  {group} …")
        yield from _CASES[group](context)
