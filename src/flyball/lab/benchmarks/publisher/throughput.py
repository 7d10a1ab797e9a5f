"""Throughput beside the raw client at its best batch, with a memory outbox and a durable one; Kafka's rate."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from uuid import uuid4

from flyball import Publisher
from flyball.brokers import Message, connect
from flyball.errors import FlyballError
from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.brokers import kafka, rabbitmq
from flyball.lab.rigs.publisher.traffic import BODY, channel
from flyball.servers.kafka import KafkaServer
from flyball.servers.rabbitmq import RabbitMqNode

_GROUP = 500


def cases(context: BenchContext, node: RabbitMqNode) -> Iterator[Row]:
    count = 10_000 if context.quick else 20_000
    batches = (500, 1000) if context.quick else (100, 200, 500, 1000, 2000)
    memory: list[float] = []
    durable: list[float] = []
    raw: dict[int, list[float]] = {batch: [] for batch in batches}
    for turn in range(-1, 3 if context.quick else 5):  # the first turn warms up
        for batch in batches:
            rate = asyncio.run(_raw_rate(node, batch, count))
            raw[batch] += [rate] if turn >= 0 else []
        for rates, outbox in ((memory, None), (durable, context.workdir / f"{uuid4().hex}.db")):
            rate = asyncio.run(_rate(node, outbox, count))
            rates += [rate] if turn >= 0 else []
    best = max(raw, key=lambda batch: statistics.median(raw[batch]))
    peer, name = statistics.median(raw[best]), f"pika, batches of {best}"
    for case, rates, goal in (("throughput memory", memory, 0.9), ("throughput durable", durable, 0.5)):
        yield context.row(
            case, statistics.median(rates), "msg/s", peer=peer, peer_name=name, goal=goal, better="higher"
        )
    yield from _kafka(context)


async def _raw_rate(node: RabbitMqNode, batch: int, count: int) -> float:
    async with channel(node) as name:
        return count / await rabbitmq.send_raw(batch)(node.amqp_url, name, count)


async def _rate(node: RabbitMqNode, outbox: Path | None, count: int) -> float:
    async with channel(node) as name, Publisher(node.amqp_url, channel=name, outbox=outbox) as publisher:
        return await _publish_all(publisher, _message_groups(count))


def _message_groups(count: int) -> Iterator[list[Message]]:
    for _ in range(count // _GROUP):
        yield [Message(BODY) for _ in range(_GROUP)]


async def _publish_all(publisher: Publisher, groups: Iterable[list[Message]]) -> float:
    """Measure messages a second; `groups` is a generator if the raw client, too, makes messages while it sends."""
    await (await publisher.publish(BODY)).wait_confirmed()
    count = 0
    start_s = time.perf_counter()
    for group in groups:
        await publisher.publish_many(group)
        count += len(group)
    await publisher.drain()
    elapsed_s = time.perf_counter() - start_s
    assert publisher.stats.confirmed == 1 + count
    return count / elapsed_s


def _kafka(context: BenchContext) -> Iterator[Row]:
    try:
        server = KafkaServer(folder=context.workdir / "kafka")
        server.start()
    except FlyballError as reason:
        context.note(f"kafka left out: {reason}")
        return
    count = 60_000 if context.quick else 200_000
    with server:
        pairs = [
            (
                asyncio.run(_kafka_rate(server.url, count)),
                kafka.send_raw(server.url, [*chain(*_message_groups(count))]),
            )
            for _ in range(4 if context.quick else 6)
        ][1:]
    yield context.row(
        "kafka rate",
        statistics.median(ours for ours, _ in pairs),
        "msg/s",
        peer=statistics.median(raw for _, raw in pairs),
        peer_name="confluent-kafka",
        goal=0.4,
        better="higher",
    )


async def _kafka_rate(url: str, count: int) -> float:
    name = f"bench.{uuid4().hex}"
    async with await connect(url) as broker:
        await broker.declare(name, "log", partitions=2)
        async with Publisher(url, channel=name, outbox=None) as publisher:
            rate = await _publish_all(publisher, list(_message_groups(count)))
        await broker.delete(name)
    return rate
