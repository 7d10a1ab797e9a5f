"""Publisher: latency beside the best static setting, throughput beside raw clients, changes, faults, sharing."""

from __future__ import annotations

from collections.abc import Iterator

from flyball.errors import require
from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.publisher import changes, faults, latency, sharing, throughput
from flyball.servers.rabbitmq import RabbitMqNode

_CASES = {
    "latency": latency.cases,
    "throughput": throughput.cases,
    "changes": changes.cases,
    "trouble": faults.cases,
    "sharing": sharing.cases,
}
GROUPS = tuple(_CASES)


def run(context: BenchContext) -> Iterator[Row]:
    require("pika", "rabbitmq")
    with RabbitMqNode(plugins=()) as node:
        for group in filter(context.wants, GROUPS):
            context.note(f"  {group} …")
            yield from _CASES[group](context, node)
