"""What a second node brings (figures 10 and 11 of Bouchenak et al.).

Five producers and ten consumers, all as fast as they can, on one node; then a second node is used, and sessions
move to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from flyball.brokers import connect
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.cluster.limited_nodes import LimitedNodes
from flyball.lab.rigs.cluster.live_cluster import LiveCluster
from flyball.lab.rigs.cluster.load import Load, Rates

PART = 0.15
PRODUCERS, CONSUMERS = 5, 10


def cases(context: BenchContext, nodes: LimitedNodes, folder: Path) -> Iterator[Row]:
    seconds = 8.0 if context.quick else 25.0
    context.note(f"  growth: {nodes.limit(PART, PART)}; the second node is there, and used later")
    one, two = asyncio.run(_measure(nodes, folder, seconds))
    for name, rates in (("one node", one), ("two nodes", two)):
        context.note(
            f"  {name}: {rates.published_per_s:.0f} msg/s published, {rates.delivered_per_s:.0f} delivered"
        )
    yield context.row(
        "growth",
        two.delivered_per_s,
        "msg/s delivered",
        peer=one.delivered_per_s,
        peer_name="static, one node",
        goal=1.85,
        better="higher",
    )


async def _measure(nodes: LimitedNodes, folder: Path, seconds: float) -> tuple[Rates, Rates]:
    cluster = LiveCluster(folder, nodes.urls)
    await cluster.drain("b")
    async with await connect(cluster.url) as broker, Load() as load:
        await load.add_consumers(broker, cluster.queue, CONSUMERS)
        await load.add_producers(broker, cluster.queue, PRODUCERS)
        await asyncio.sleep(2.0)
        one = await load.measure(seconds)
        await cluster.drain("b", wanted=False)
        await cluster.wait_for(
            lambda record: (
                record.state.producers["b"] >= PRODUCERS // 2
                and record.state.consumers["b"] == CONSUMERS // 2
                and not record.state.moving
            )
        )
        await asyncio.sleep(2.0)
        two = await load.measure(seconds)
    return one, two
