"""Publisher: latency beside the best static setting, throughput beside raw clients, changes, trouble, sharing."""

from __future__ import annotations

from collections.abc import Iterator

from flyball.errors import require
from flyball.lab.bench import BenchContext, Row
from flyball.lab.publisher_cases import changes, latency, sharing, throughput, trouble
from flyball.servers.rabbitmq import RabbitMqNode


def run(context: BenchContext) -> Iterator[Row]:
    require("pika", "rabbitmq")
    with RabbitMqNode(plugins=()) as node:
        for group in (latency, throughput, changes, trouble, sharing):
            context.note(f"  {group.__name__.rpartition('.')[2]} …")
            yield from group.cases(context, node)
