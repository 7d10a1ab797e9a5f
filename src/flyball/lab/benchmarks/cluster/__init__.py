"""Cluster: placement, session moves, exchange of messages, repair and growth on limited RabbitMQ nodes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.cluster import capacity, exchange, growth, migration, placement, repair
from flyball.lab.rigs.cluster.limited_nodes import LimitedNodes

_CASES: dict[str, Callable[[BenchContext, LimitedNodes, Path], Iterator[Row]]] = {
    "placement": placement.cases,
    "migration": migration.cases,
    "exchange": exchange.cases,
    "repair": repair.cases,
    "growth": growth.cases,
    "capacity": capacity.cases,
}
GROUPS = tuple(_CASES)


def run(context: BenchContext) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=context.workdir) as folder, LimitedNodes(3) as nodes:
        for name, cases in _CASES.items():
            if context.wants(name):
                yield from cases(context, nodes, Path(folder))
