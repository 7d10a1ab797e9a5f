"""From the kill of a node to the moment when all its clients are served by others; a third node is spare.

Four producers and four consumers with one message in work at a time. A client is served again when its first
message after the kill is confirmed, or delivered, at another node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from flyball.brokers import connect
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.cluster.limited_nodes import LimitedNodes
from flyball.lab.rigs.cluster.live_cluster import LiveCluster
from flyball.lab.rigs.cluster.load import Client, Load

PART = 0.3
CLIENTS = 4
PER_S = 50.0
_GUARD_S = 60.0


def cases(context: BenchContext, nodes: LimitedNodes, folder: Path) -> Iterator[Row]:
    rounds = 1 if context.quick else 3
    context.note(f"  repair: {nodes.limit(PART, PART, PART)}")
    took_s = []
    for _ in range(rounds):
        took_s.append(asyncio.run(_measure(nodes, folder)))
        nodes["a"].start()
    context.note(f"  kills: {', '.join(f'{each:.1f} s' for each in took_s)}")
    yield context.row("repair", max(took_s), "s from kill to all clients served", goal=10.0)


async def _measure(nodes: LimitedNodes, folder: Path) -> float:
    cluster = LiveCluster(folder, nodes.urls)
    async with await connect(cluster.url) as broker, Load() as load:
        await load.add_producers(broker, cluster.queue, CLIENTS, 1.2 * PER_S, at_once=1)
        await load.add_consumers(broker, cluster.queue, CLIENTS, PER_S, at_once=1)
        await asyncio.sleep(2.0)
        record = await cluster.read()
        victims = record.state.producers["a"] + record.state.consumers["a"]
        assert victims, "nobody was elected to the node that is killed"
        killed_s = time.monotonic()
        await asyncio.to_thread(nodes["a"].server.kill)
        while time.monotonic() < killed_s + _GUARD_S:
            served = [_served_s(client, killed_s) for client in (*load.producers, *load.consumers)]
            if None not in served:
                return max(each for each in served if each is not None) - killed_s
            await asyncio.sleep(0.05)
    raise TimeoutError(f"a client was not served {_GUARD_S:g} s after its node was killed")


def _served_s(client: Client, since_s: float) -> float | None:
    """When it did something at a node that was not killed; those of other nodes at once."""
    return next((one.time_s for one in client.events if one.node != "a" and one.time_s >= since_s), None)
