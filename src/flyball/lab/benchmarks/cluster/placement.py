"""Where clients are connected decides the throughput (figures 8 and 9 of Bouchenak et al.).

Two nodes, four producers, eight consumers, all of a limited rate; a node of the fair placement is nearly busy. How
much that is, is measured before. `placement`: clients that were elected, beside 3 producers and 2 consumers at one
node and 1 and 6 at the other, in the order of connection, with RabbitMQ's shovel from the first to the second.
`after a bad start`: all clients joined while one node was drained; then sessions moved.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

from flyball.brokers import connect
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.cluster.limited_nodes import LimitedNodes
from flyball.lab.rigs.cluster.live_cluster import LiveCluster
from flyball.lab.rigs.cluster.load import Load, Rates

PART = 0.15
PRODUCERS, CONSUMERS = 4, 8
CONNECTION_ORDER = {"a": (3, 2), "b": (1, 6)}
BUSY, SPARE = 0.85, 1.1
"""How much of a node the fair placement uses, and what consumers can take beside what is sent."""


def cases(context: BenchContext, nodes: LimitedNodes, folder: Path) -> Iterator[Row]:
    seconds = 8.0 if context.quick else 25.0
    context.note(f"  placement: {nodes.limit(PART, PART)}")
    capacity = asyncio.run(_measure_capacity(nodes, seconds))
    per_s = (BUSY * 2 * capacity / PRODUCERS, SPARE * BUSY * 2 * capacity / CONSUMERS)
    context.note(
        f"  one node serves {capacity:.0f} msg/s; a producer sends {per_s[0]:.0f}, a consumer {per_s[1]:.0f}"
    )
    fair, moved = asyncio.run(_measure_ours(nodes, folder, per_s, seconds))
    other = asyncio.run(_measure_connection_order(nodes, per_s, seconds))
    yield context.row(
        "placement",
        fair.delivered_per_s,
        "msg/s delivered",
        peer=other.delivered_per_s,
        peer_name="in the order of connection, with a shovel",
        goal=1.3,
        better="higher",
    )
    yield context.row("placement queue growth", fair.growth_per_s, "msg/s", goal=0.02 * fair.delivered_per_s)
    yield context.row("placement queue growth, in the order of connection", other.growth_per_s, "msg/s")
    yield context.row(
        "placement after a bad start",
        moved.delivered_per_s,
        "msg/s delivered",
        peer=fair.delivered_per_s,
        peer_name="fair from the beginning",
        goal=0.97,
        better="higher",
    )


async def _measure_capacity(nodes: LimitedNodes, seconds: float) -> float:
    """What one node delivers to half of the clients, all as fast as they can."""
    queue = f"bench.{uuid4().hex}"
    async with await connect(nodes["a"].url) as broker, Load() as load:
        await broker.declare(queue)
        await load.add_producers(broker, queue, PRODUCERS // 2)
        await load.add_consumers(broker, queue, CONSUMERS // 2)
        await asyncio.sleep(2.0)
        rates = await load.measure(seconds)
    return rates.delivered_per_s


async def _measure_ours(
    nodes: LimitedNodes, folder: Path, per_s: tuple[float, float], seconds: float
) -> tuple[Rates, Rates]:
    """Elected, and after a bad start; each in a cluster of its own."""
    cluster = LiveCluster(folder, nodes.urls)
    async with await connect(cluster.url) as broker, Load() as load:
        await load.add_consumers(broker, cluster.queue, CONSUMERS, per_s[1])
        await load.add_producers(broker, cluster.queue, PRODUCERS, per_s[0])
        await asyncio.sleep(2.0)
        fair = await load.measure(seconds)
    cluster = LiveCluster(folder, nodes.urls)
    await cluster.drain("b")
    async with await connect(cluster.url) as broker, Load() as load:
        await load.add_consumers(broker, cluster.queue, CONSUMERS, per_s[1])
        await load.add_producers(broker, cluster.queue, PRODUCERS, per_s[0])
        await cluster.wait_for(lambda record: record.state.clients == PRODUCERS + CONSUMERS)
        await cluster.drain("b", wanted=False)
        await cluster.wait_for(
            lambda record: (
                record.state.producers["b"] == PRODUCERS // 2
                and record.state.consumers["b"] == CONSUMERS // 2
                and not record.state.moving
            )
        )
        await asyncio.sleep(2.0)
        moved = await load.measure(seconds)
    return fair, moved


async def _measure_connection_order(nodes: LimitedNodes, per_s: tuple[float, float], seconds: float) -> Rates:
    """Plain RabbitMQ; the shovel moves what waits at the first node to the second."""
    queue = f"bench.{uuid4().hex}"
    shovel = {
        "src-protocol": "amqp091",
        "src-uri": nodes["a"].server.amqp_url,
        "src-queue": queue,
        "dest-protocol": "amqp091",
        "dest-uri": nodes["b"].server.amqp_url,
        "dest-queue": queue,
        "ack-mode": "on-confirm",
    }
    async with AsyncExitStack() as stack:
        brokers = {name: await stack.enter_async_context(await connect(url)) for name, url in nodes.urls.items()}
        load = await stack.enter_async_context(Load())
        for name, (producers, consumers) in CONNECTION_ORDER.items():
            await brokers[name].declare(queue)
            await load.add_consumers(brokers[name], queue, consumers, per_s[1])
            await load.add_producers(brokers[name], queue, producers, per_s[0])
        control = nodes["a"].server.control
        await asyncio.to_thread(control, "set_parameter", "shovel", queue, json.dumps(shovel))
        try:
            await asyncio.sleep(2.0)
            return await load.measure(seconds)
        finally:
            await asyncio.to_thread(control, "clear_parameter", "shovel", queue)
