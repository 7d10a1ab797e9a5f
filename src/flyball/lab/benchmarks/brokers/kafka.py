"""Kafka: through the port beside confluent-kafka alone, alternately in the same run.

The plain program does what a careful user would: an idempotent producer with a delivery report for each message,
stored by its id; when consuming, the id as text, key, headers, body, partition and offset of each message, each
message acknowledged (its offset stored) and a commit a batch. Both sides use the same settings of the client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

from flyball.brokers import Message, connect
from flyball.errors import FlyballError, require
from flyball.lab.bench import BenchContext, Row
from flyball.lab.interleave import measure_alternately
from flyball.lab.rigs.brokers.group_rate import group_rate
from flyball.servers.kafka import KafkaServer

_BODY = bytes(range(256))
_BATCH = 2000
_AT_ONCE = 500
_PARTITIONS = 2
_GOAL = 0.8


def cases(context: BenchContext) -> Iterator[Row]:
    messages = [Message(_BODY, key=b"%d" % (at % 64)) for at in range(60_000 if context.quick else 150_000)]
    turns = 9 if context.quick else 15
    try:
        server = KafkaServer(folder=context.workdir / "kafka")
        server.start()
    except FlyballError as reason:
        context.note(f"kafka left out: {reason}")
        return
    with server:
        ours, raw = measure_alternately(
            turns, lambda: asyncio.run(_send(server.url, messages)), lambda: send_raw(server.url, messages)
        )
        yield context.row(
            "kafka send", ours, "msg/s", peer=raw, peer_name="confluent-kafka", goal=_GOAL, better="higher"
        )
        log = asyncio.run(_fill_log(server.url, messages))
        ours, raw = measure_alternately(
            turns,
            lambda: asyncio.run(
                group_rate(server.url, log, len(messages), at_once=_AT_ONCE, body_bytes=len(_BODY))
            ),
            lambda: _raw_consume(server.url, log, len(messages)),
        )
        yield context.row(
            "kafka consume", ours, "msg/s", peer=raw, peer_name="confluent-kafka", goal=_GOAL, better="higher"
        )


async def _declare_log(url: str) -> str:
    log = f"bench-{uuid4().hex[:8]}"
    async with await connect(url) as broker:
        await broker.declare(log, "log", partitions=_PARTITIONS)
    return log


async def _fill_log(url: str, messages: list[Message]) -> str:
    log = await _declare_log(url)
    async with await connect(url) as broker:
        sender = await broker.sender(log)
        for at in range(0, len(messages), _BATCH):
            await sender.send_batch(messages[at : at + _BATCH])
    return log


async def _send(url: str, messages: list[Message]) -> float:
    log = await _declare_log(url)
    async with await connect(url) as broker:
        sender = await broker.sender(log)
        await sender.send_batch(messages[:1])
        began = time.perf_counter()
        in_flight: set[asyncio.Task[Any]] = set()
        for at in range(0, len(messages), _BATCH):
            in_flight.add(asyncio.create_task(sender.send_batch(messages[at : at + _BATCH])))
            if len(in_flight) == 8:
                done, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
                _check([result for task in done for result in task.result()])
        for results in await asyncio.gather(*in_flight):
            _check(results)
        rate = len(messages) / (time.perf_counter() - began)
        await broker.delete(log)
    return rate


def _check(results: list[Any]) -> None:
    failed = [result for result in results if result.error is not None]
    if failed:
        raise failed[0].error


def send_raw(url: str, messages: list[Message]) -> float:
    kafka = require("confluent_kafka", "kafka")
    log = asyncio.run(_declare_log(url))
    producer = kafka.Producer(
        {
            "bootstrap.servers": url.split("/")[2],
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "partitioner": "murmur2_random",
        }
    )
    results: dict[str, tuple[object, int, int]] = {}

    def on_delivery(id: str, error: object, record: Any) -> None:
        results[id] = (error, record.partition(), record.offset())

    producer.produce(log, b"", on_delivery=partial(on_delivery, "first"))
    producer.flush()
    began = time.perf_counter()
    for at, message in enumerate(messages):
        id = message.id
        while True:
            try:
                producer.produce(
                    log,
                    message.body,
                    message.key,
                    on_delivery=partial(on_delivery, id),
                    headers=[("message-id", id)],
                )
                break
            except BufferError:
                producer.poll(0.01)
        if at % _BATCH == 0:
            producer.poll(0)
    producer.flush()
    rate = len(messages) / (time.perf_counter() - began)
    assert len(results) == len(messages) + 1
    assert all(error is None for error, _, _ in results.values())
    asyncio.run(_delete(url, log))
    return rate


async def _delete(url: str, log: str) -> None:
    async with await connect(url) as broker:
        await broker.delete(log)


def _raw_consume(url: str, log: str, count: int) -> float:
    kafka = require("confluent_kafka", "kafka")
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": url.split("/")[2],
            "group.id": f"bench-{uuid4().hex[:8]}",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.subscribe([log])
    began, got, size, first = 0.0, 0, 0, 0
    while got < count - first:
        records = consumer.consume(_AT_ONCE, 1.0)
        if not records:
            continue
        rows = []
        for record in records:
            if record.error() is not None:
                raise kafka.KafkaException(record.error())
            headers = dict(record.headers())
            id = headers.pop("message-id").decode()
            position = (record.topic(), record.partition(), record.offset())
            rows.append((id, record.key(), headers, record.value(), position))
        for record, entry in zip(records, rows, strict=True):
            size += len(entry[3])
            consumer.store_offsets(message=record)  # the acknowledgement of one message
        consumer.commit(asynchronous=True)
        if first == 0:
            began, first, size = time.perf_counter(), len(records), 0
        else:
            got += len(records)
    rate = got / (time.perf_counter() - began)
    assert size == got * len(_BODY)
    consumer.close()
    return rate
