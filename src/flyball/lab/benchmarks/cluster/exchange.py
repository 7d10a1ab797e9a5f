"""How fast a surplus moves between nodes, and what clients lose meanwhile.

A backlog is at the first of two nodes when two producers and two consumers join at each; the half of it that is
above the allowed length moves to the second. The rate is that of the growth of the second queue, between a tenth
and nine tenths of what moves. What clients have then is compared with what they have when nothing moves any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from flyball.brokers import Message, connect
from flyball.brokers.port import Broker
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.cluster.limited_nodes import LimitedNodes
from flyball.lab.rigs.cluster.live_cluster import LiveCluster
from flyball.lab.rigs.cluster.load import BODY, Load

PART = 0.6
CLIENTS = 4
PER_S = 300.0
_FILL = 1000
_GUARD_S = 120.0


def cases(context: BenchContext, nodes: LimitedNodes, folder: Path) -> Iterator[Row]:
    moving = 20_000 if context.quick else 60_000
    context.note(f"  exchange: {nodes.limit(PART, PART)}")
    rate, lost = asyncio.run(_measure(nodes, folder, moving))
    yield context.row("exchange", rate, "msg/s", goal=3000.0, better="higher")
    yield context.row("exchange, clients lose", 100 * lost, "% of their throughput", goal=10.0)


async def _measure(nodes: LimitedNodes, folder: Path, moving: int) -> tuple[float, float]:
    cluster = LiveCluster(folder, nodes.urls, allowed_length=moving)
    await _fill(nodes["a"].url, cluster.queue, 2 * moving)
    async with (
        await connect(f"{cluster.url}&manage=no") as broker,
        Load() as load,
        await connect(nodes["b"].url) as b,
    ):
        await b.declare(cluster.queue)
        async with await connect(cluster.url):  # manages
            await load.add_consumers(broker, cluster.queue, CLIENTS, PER_S)
            await load.add_producers(broker, cluster.queue, CLIENTS, PER_S)
            since_s = await _wait_for_depth(b, cluster.queue, moving // 10)
            until_s = await _wait_for_depth(b, cluster.queue, 9 * moving // 10)
            during = load.rates(since_s, until_s)
            await _wait_for_depth(b, cluster.queue, 98 * moving // 100)
            await asyncio.sleep(2.0)
            after = await load.measure(5.0)
    lost = 1.0 - (during.published_per_s + during.delivered_per_s) / (
        after.published_per_s + after.delivered_per_s
    )
    return 0.8 * moving / (until_s - since_s), max(0.0, lost)


async def _wait_for_depth(broker: Broker, queue: str, depth: int) -> float:
    """When the queue has become so long."""
    due_s = time.monotonic() + _GUARD_S
    while time.monotonic() < due_s:
        if await broker.depth(queue) >= depth:
            return time.monotonic()
        await asyncio.sleep(0.02)
    raise TimeoutError(f"the queue did not get {depth} messages in {_GUARD_S:g} s")


async def _fill(url: str, queue: str, count: int) -> None:
    async with await connect(url) as broker:
        await broker.declare(queue)
        sender = await broker.sender(queue)
        for _ in range(count // _FILL):
            await sender.send_batch([Message(BODY) for _ in range(_FILL)])
