"""Sharing: eight publishers with endless work on one queue, joining in turn; Jain's index of what each got.

Bodies of 50 KB make the broker the bottleneck, not this process; its queue keeps the newest 50 messages only, so
that nothing grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import uuid4

from flyball import OutboxConfig, Publisher
from flyball.brokers import Message
from flyball.errors import require
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.publisher.traffic import delayed_url
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.twin.publisher import jain

_PUBLISHERS = 8
_BODY = bytes(50_000)


def cases(context: BenchContext, node: RabbitMqNode) -> Iterator[Row]:
    for round_trip_s in (0.0, 0.013) if context.quick else (0.0, 0.013, 0.14):
        with delayed_url(node, round_trip_s) as (url, _):
            shares = asyncio.run(_shares(node, url, join_every_s=0.5 if context.quick else 1.0))
        name = f"jain {1000 * round_trip_s:g} ms" if round_trip_s else "jain"
        context.note(f"  {name}: confirmed from 15 to 20 s after the last joined: {shares}")
        yield context.row(name, jain(shares), "", goal=0.97, better="higher")


async def _shares(node: RabbitMqNode, url: str, *, join_every_s: float) -> list[float]:
    queue = f"bench.{uuid4().hex}"
    await asyncio.to_thread(_declare_short, node.amqp_url, queue)
    joined: list[Publisher] = []

    async def work() -> None:
        async with Publisher(url, channel=queue, outbox=OutboxConfig(None, max_bytes=50 << 20)) as publisher:
            joined.append(publisher)
            while True:
                await publisher.publish_many([Message(_BODY) for _ in range(10)])

    tasks = []
    for _ in range(_PUBLISHERS):
        tasks.append(asyncio.create_task(work()))
        await asyncio.sleep(join_every_s)
    await asyncio.sleep(15.0)
    before = [one.stats.confirmed for one in joined]
    await asyncio.sleep(5.0)
    confirmed = [float(one.stats.confirmed - was) for one, was in zip(joined, before, strict=True)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return confirmed


def _declare_short(url: str, queue: str) -> None:
    pika = require("pika", "rabbitmq")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(queue, durable=True, arguments={"x-max-length": 50})
    connection.close()
