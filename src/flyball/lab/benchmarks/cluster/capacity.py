"""How well the capacities of unequal nodes are measured, and that clients are shared accordingly.

One of two nodes has twice the processor time of the other. Clients of a limited rate join; first they are few,
then more than both nodes can serve. Capacities are not configured. When both are known, sessions move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from flyball.brokers import connect
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.cluster.limited_nodes import LimitedNodes
from flyball.lab.rigs.cluster.live_cluster import LiveCluster
from flyball.lab.rigs.cluster.load import Load

PARTS = (0.1, 0.2)
PER_S = 50.0
FEW, MANY = 4, 40
"""Producers, and as many consumers."""


def cases(context: BenchContext, nodes: LimitedNodes, folder: Path) -> Iterator[Row]:
    context.note(f"  capacity: {nodes.limit(*PARTS)}")
    capacities, clients, texts = asyncio.run(_measure(nodes, folder))
    for name in "ab":
        context.note(f"  {name}: {capacities[name]} clients, {texts[name]}; it has {clients[name]} now")
    ratio, share = capacities["b"] / capacities["a"], clients["b"] / clients["a"]
    yield context.row("capacity, larger / smaller node", ratio, "measured, 2 is right")
    yield context.row("capacity, error of the ratio", 100 * abs(ratio / 2.0 - 1.0), "%", goal=25.0)
    yield context.row("capacity, clients of the larger / smaller node", share, "2 is right")


async def _measure(nodes: LimitedNodes, folder: Path) -> tuple[dict[str, int], dict[str, int], dict[str, str]]:
    cluster = LiveCluster(folder, nodes.urls)
    async with await connect(cluster.url) as broker, Load() as load:
        await load.add_consumers(broker, cluster.queue, FEW, 2 * PER_S, at_once=1)
        await load.add_producers(broker, cluster.queue, FEW, PER_S, at_once=1)
        await cluster.wait_for(lambda record: all("at low load" not in text for text in record.estimates.values()))
        await load.add_consumers(broker, cluster.queue, MANY - FEW, 2 * PER_S, at_once=1)
        await load.add_producers(broker, cluster.queue, MANY - FEW, PER_S, at_once=1)
        await cluster.wait_for(lambda record: all(node.capacity for node in record.state.nodes.values()))
        await asyncio.sleep(10.0)  # sessions move after five
        record = await cluster.wait_for(lambda record: not record.state.moving)
    state = record.state
    capacities = {name: node.capacity or 0 for name, node in state.nodes.items()}
    return (
        capacities,
        {name: state.producers[name] + state.consumers[name] for name in capacities},
        dict(record.estimates),
    )
