"""RabbitMQ streams: through the port beside rstream alone, alternately in the same run.

The plain program sends AMQP 1.0 messages that carry an id, with a confirm a message; when consuming it reads id,
properties and body of each message and its offset, and stores its offset (rstream's acknowledgement) a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from flyball.brokers import Message, connect
from flyball.brokers.url import BrokerUrl
from flyball.errors import FlyballError, require
from flyball.lab.bench import BenchContext, Row
from flyball.lab.interleave import measure_alternately
from flyball.lab.rigs.brokers.group_rate import group_rate
from flyball.servers.rabbitmq import RabbitMqNode

_BODY = bytes(range(256))
_BATCH = 1000
_AT_ONCE = 500
_GOAL = 0.8


def cases(context: BenchContext) -> Iterator[Row]:
    messages = [Message(_BODY) for _ in range(20_000 if context.quick else 60_000)]
    turns = 5 if context.quick else 9
    node = RabbitMqNode()
    try:
        node.start()
    except FlyballError as reason:
        context.note(f"streams left out: {reason}")
        return
    with node:
        url = node.stream_url
        ours, raw = measure_alternately(
            turns, lambda: asyncio.run(_send(url, messages)), lambda: asyncio.run(_raw_send(url, messages))
        )
        yield context.row("stream send", ours, "msg/s", peer=raw, peer_name="rstream", goal=_GOAL, better="higher")
        log = asyncio.run(_fill_log(url, messages))
        count = len(messages)
        ours, raw = measure_alternately(
            turns,
            lambda: asyncio.run(group_rate(url, log, count, at_once=_AT_ONCE, body_bytes=len(_BODY))),
            lambda: asyncio.run(_raw_consume(url, log, count)),
        )
        yield context.row(
            "stream consume", ours, "msg/s", peer=raw, peer_name="rstream", goal=_GOAL, better="higher"
        )


def _login(url: str) -> dict[str, Any]:
    parsed = BrokerUrl.parse(url)
    host, port = parsed.hosts[0]
    return {"host": host, "port": port, "username": parsed.user, "password": parsed.password}


async def _fill_log(url: str, messages: list[Message]) -> str:
    log = f"bench-{uuid4().hex[:8]}"
    async with await connect(url) as broker:
        await broker.declare(log, "log")
        sender = await broker.sender(log)
        for at in range(0, len(messages), _BATCH):
            await sender.send_batch(messages[at : at + _BATCH])
    return log


async def _send(url: str, messages: list[Message]) -> float:
    log = f"bench-{uuid4().hex[:8]}"
    async with await connect(url) as broker:
        await broker.declare(log, "log")
        sender = await broker.sender(log)
        await sender.send_batch(messages[:1])
        began = time.perf_counter()
        in_flight: set[asyncio.Task[Any]] = set()
        results = []
        for at in range(0, len(messages), _BATCH):
            in_flight.add(asyncio.create_task(sender.send_batch(messages[at : at + _BATCH])))
            if len(in_flight) == 4:
                done, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
                results += [result for task in done for result in task.result()]
        results += [result for batch in await asyncio.gather(*in_flight) for result in batch]
        rate = len(messages) / (time.perf_counter() - began)
        assert len(results) == len(messages)
        assert all(result.error is None for result in results)
        await broker.delete(log)
    return rate


async def _raw_send(url: str, messages: list[Message]) -> float:
    rstream = require("rstream", "rabbitmq")
    properties = require("rstream._pyamqp.message", "rabbitmq").Properties
    stream = f"bench-raw-{uuid4().hex[:8]}"
    confirmed: dict[int, bool] = {}
    complete = asyncio.Event()
    awaited = len(messages) + 1

    def on_confirm(status: Any) -> None:
        confirmed[status.message_id] = status.is_confirmed
        if len(confirmed) == awaited:
            complete.set()

    async with rstream.Producer(**_login(url)) as producer:
        await producer.create_stream(stream)
        await producer.send_batch(stream, [rstream.AMQPMessage(body=b"")], on_publish_confirm=on_confirm)
        began = time.perf_counter()
        for at in range(0, len(messages), _BATCH):
            batch = [
                rstream.AMQPMessage(body=each.body, properties=properties(message_id=each.id))
                for each in messages[at : at + _BATCH]
            ]
            await producer.send_batch(stream, batch, on_publish_confirm=on_confirm)
        await complete.wait()
        rate = len(messages) / (time.perf_counter() - began)
        assert all(confirmed.values())
        await producer.delete_stream(stream)
    return rate


async def _raw_consume(url: str, log: str, count: int) -> float:
    rstream = require("rstream", "rabbitmq")
    stream, name = f"{log}-0", f"bench-{uuid4().hex[:8]}"
    consumer = rstream.Consumer(**_login(url))
    await consumer.start()
    rows: list[tuple[str, Any, bytes, int]] = []
    began = 0.0
    complete = asyncio.Event()
    read = 0

    async def on_message(message: Any, context: Any) -> None:
        nonlocal began, read
        if not began:
            began = time.perf_counter()
        id = message.properties.message_id.decode()
        rows.append((id, message.application_properties, message.body, context.offset))
        read += 1
        if len(rows) == _AT_ONCE:
            rows.clear()
            await context.consumer.store_offset(stream, name, context.offset)
        if read == count:
            complete.set()

    await consumer.subscribe(
        stream,
        on_message,
        decoder=rstream.amqp_decoder,
        subscriber_name=name,
        offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None),
    )
    running = asyncio.create_task(consumer.run())
    await complete.wait()
    rate = (count - 1) / (time.perf_counter() - began)
    await consumer.close()
    running.cancel()
    return rate
