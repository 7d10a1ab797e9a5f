"""RabbitMQ: what the port costs beside plain pika that carries the same information for each message.

Sending: persistent messages of 256 B with an id, to a durable classic queue, in batches whose every message has
its result from the broker's confirms; several batch sizes, the best of each side is compared. Consuming: key,
headers and id of every message read and acknowledged, with the same number in flight. Both sides are measured
alternately in one process; the pair with the median ratio counts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from flyball.brokers import Message, connect
from flyball.brokers.port import HeaderValue
from flyball.errors import require
from flyball.lab.bench import BenchContext, Row
from flyball.lab.interleave import typical_pair
from flyball.servers.rabbitmq import RabbitMqNode

_BODY_BYTES = 256
_WINDOW = 100  # our default
_RAW_ACK_EVERY = 50  # half the window, so that the broker can always send
_KEY = b"sensor-17"
_HEADERS: dict[str, HeaderValue] = {"city": "lyon", "attempt": 3}

Measure = Callable[[str, str, int], Awaitable[float]]


def cases(context: BenchContext) -> Iterator[Row]:
    require("pika", "rabbitmq")
    own_url = os.environ.get("FLYBALL_TEST_AMQP_URL")
    if own_url:
        yield from _cases(context, own_url)
        return
    with RabbitMqNode(plugins=()) as node:
        yield from _cases(context, node.amqp_url)


def _cases(context: BenchContext, url: str) -> Iterator[Row]:
    repeats = 9 if context.quick else 15
    batches = (200, 1000) if context.quick else (100, 200, 500, 1000, 2000)
    count = 3000 if context.quick else 10_000
    best = {"ours": 0.0, "raw": 0.0}
    for batch in batches:
        measured = asyncio.run(
            _measure_alternately(url, repeats, count, _send_ours(batch), send_raw(batch), preload=False)
        )
        context.note(f"  rabbitmq send, batches of {batch}: ours {measured[0]:.0f}, pika {measured[1]:.0f} msg/s")
        best = {"ours": max(best["ours"], measured[0]), "raw": max(best["raw"], measured[1])}
    yield context.row(
        "rabbitmq send", best["ours"], "msg/s", peer=best["raw"], peer_name="pika", goal=0.9, better="higher"
    )
    ours, raw = asyncio.run(_measure_alternately(url, repeats, count, _consume_ours, _consume_raw, preload=True))
    yield context.row("rabbitmq consume", ours, "msg/s", peer=raw, peer_name="pika", goal=0.9, better="higher")


async def _measure_alternately(
    url: str, repeats: int, count: int, ours: Measure, raw: Measure, *, preload: bool
) -> tuple[float, float]:
    """Measure a typical pair of rates, alternately, so that both run under the same conditions."""
    rates: tuple[list[float], list[float]] = ([], [])
    async with await connect(url) as broker:
        for at in range(-1, repeats):
            # The second of a pair finds a warmer broker, so the order alternates; the first round warms up.
            sides = [(0, ours), (1, raw)] if at % 2 == 0 else [(1, raw), (0, ours)]
            for side, measure in sides:
                queue = f"bench.{side}.{at + 1}"
                await broker.declare(queue)
                if preload:
                    sender = await broker.sender(queue)
                    load = [Message(bytes(_BODY_BYTES), key=_KEY, headers=_HEADERS) for _ in range(count)]
                    assert all(result.ok for result in await sender.send_batch(load))
                    await sender.close()
                elapsed_s = await measure(url, queue, count)
                await broker.delete(queue)
                if at >= 0:
                    rates[side].append(count / elapsed_s)
    return typical_pair(list(zip(*rates, strict=True)))


def _send_ours(batch: int) -> Measure:
    async def measure(url: str, queue: str, count: int) -> float:
        body = bytes(_BODY_BYTES)
        async with await connect(url) as broker:
            sender = await broker.sender(queue)
            start_s = time.perf_counter()
            stored = 0
            for _ in range(count // batch):
                results = await sender.send_batch([Message(body) for _ in range(batch)])
                stored += sum([result.ok for result in results])
            elapsed_s = time.perf_counter() - start_s
        assert stored == count // batch * batch
        return elapsed_s

    return measure


def send_raw(batch: int) -> Measure:
    async def measure(url: str, queue: str, count: int) -> float:
        import pika

        from flyball.brokers.port import new_id

        connection, channel = await _raw_channel(url)
        body = bytes(_BODY_BYTES)
        waiting: dict[int, str] = {}
        results: dict[str, bool] = {}
        done = asyncio.Event()

        def on_confirm(frame: Any) -> None:
            tag, ok = frame.method.delivery_tag, isinstance(frame.method, pika.spec.Basic.Ack)
            if frame.method.multiple:
                for known in [known for known in waiting if known <= tag]:
                    results[waiting.pop(known)] = ok
            else:
                results[waiting.pop(tag)] = ok
            if not waiting:
                done.set()

        channel.confirm_delivery(on_confirm)
        tag = stored = 0
        start_s = time.perf_counter()
        for _ in range(count // batch):
            done.clear()
            results = {}
            for _ in range(batch):
                tag += 1
                waiting[tag] = id = new_id()
                properties = pika.BasicProperties(message_id=id, delivery_mode=2)
                channel.basic_publish("", queue, body, properties, mandatory=True)
            await done.wait()
            stored += sum(results.values())
        elapsed_s = time.perf_counter() - start_s
        await _raw_close(connection)
        assert stored == count // batch * batch
        return elapsed_s

    return measure


async def _consume_ours(url: str, queue: str, count: int) -> float:
    async with await connect(url) as broker:
        start_s = time.perf_counter()
        receiver = await broker.receiver(queue, window=_WINDOW)
        got = 0
        while got < count:
            deliveries = await receiver.receive()
            for delivery in deliveries:
                message = delivery.message
                assert message.key == _KEY
                assert message.headers["attempt"] == 3
            await receiver.ack(*deliveries)
            got += len(deliveries)
        return time.perf_counter() - start_s


async def _consume_raw(url: str, queue: str, count: int) -> float:
    connection, channel = await _raw_channel(url)
    done = asyncio.Event()
    got = 0

    def on_delivery(_channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        nonlocal got
        assert properties.headers["x-flyball-key"] == _KEY
        assert properties.headers["attempt"] == 3
        assert properties.message_id
        got += 1
        if got % _RAW_ACK_EVERY == 0 or got == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if got == count:
            done.set()

    start_s = time.perf_counter()
    channel.basic_qos(prefetch_count=_WINDOW)
    channel.basic_consume(queue, on_delivery)
    await done.wait()
    elapsed_s = time.perf_counter() - start_s
    await _raw_close(connection)
    return elapsed_s


async def _raw_channel(url: str) -> tuple[Any, Any]:
    import pika
    from pika.adapters.asyncio_connection import AsyncioConnection

    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection = AsyncioConnection(
        pika.URLParameters(url.partition("?")[0]),
        on_open_callback=lambda up: up.channel(on_open_callback=opened.set_result),
        on_open_error_callback=lambda _, error: opened.set_exception(error),
    )
    return connection, await opened


async def _raw_close(connection: Any) -> None:
    closed = asyncio.Event()
    connection.add_on_close_callback(lambda *_: closed.set())
    connection.close()
    await closed.wait()
