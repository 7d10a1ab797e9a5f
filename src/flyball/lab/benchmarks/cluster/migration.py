"""How long a client pauses while its session moves to another node.

Four producers and four consumers on two nodes, one of which is drained and used again in turn. The gap of a
producer is from its last confirm at the old node to the first at the new one, that of a consumer from its last
message to its first; both have one message in work at a time, and messages always wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from flyball.brokers import connect
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.cluster.limited_nodes import LimitedNodes
from flyball.lab.rigs.cluster.live_cluster import LiveCluster
from flyball.lab.rigs.cluster.load import Load, gaps_s, percentile

PART = 0.3
CLIENTS = 4
PER_S = 50.0


def cases(context: BenchContext, nodes: LimitedNodes, folder: Path) -> Iterator[Row]:
    rounds = 2 if context.quick else 8
    context.note(f"  migration gap: {nodes.limit(PART, PART)}")
    producers, consumers = asyncio.run(_measure(nodes, folder, rounds))
    for name, gaps in (("producers", producers), ("consumers", consumers)):
        context.note(f"  {name}: {len(gaps)} moves, median {1e3 * percentile(gaps, 0.5):.0f} ms")
    gap = percentile([*producers, *consumers], 0.99)
    yield context.row("migration gap", 1e3 * gap, "ms, p99", goal=500.0)


async def _measure(nodes: LimitedNodes, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    cluster = LiveCluster(folder, nodes.urls)
    async with await connect(cluster.url) as broker, Load() as load:
        await load.add_producers(broker, cluster.queue, CLIENTS, 1.2 * PER_S, at_once=1)
        await load.add_consumers(broker, cluster.queue, CLIENTS, PER_S, at_once=1)
        for _ in range(rounds):
            await cluster.drain("b")
            await cluster.wait_for(lambda record: not record.state.consumers["b"] and not record.state.moving)
            await asyncio.sleep(1.0)
            await cluster.drain("b", wanted=False)
            await cluster.wait_for(
                lambda record: record.state.consumers["b"] == CLIENTS // 2 and not record.state.moving
            )
            await asyncio.sleep(1.0)
        producers = [gap for client in load.producers for gap in gaps_s(client)]
        consumers = [gap for client in load.consumers for gap in gaps_s(client)]
    return producers, consumers
