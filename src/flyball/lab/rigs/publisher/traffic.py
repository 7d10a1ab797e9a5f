"""A publisher under load: every message's time from the call of `publish()` to the broker's confirm."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from flyball import Publisher
from flyball.brokers import connect
from flyball.control.step import Controller
from flyball.publisher.handle import Dropped
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode

BODY = bytes(256)


class Timed(NamedTuple):
    """When `publish` was called, in seconds after the start, and the time from then to the confirm."""

    called_s: float
    latency_s: float


@contextmanager
def delayed_url(node: RabbitMqNode, round_trip_s: float) -> Iterator[tuple[str, FaultProxy | None]]:
    """Yield the node's URL, direct (round trip 0) or through a proxy that adds half the round trip each way."""
    if not round_trip_s:
        yield node.amqp_url, None
        return
    with FaultProxy(node.ports.amqp, delay_s=round_trip_s / 2.0) as proxy:
        yield f"amqp://guest:guest@127.0.0.1:{proxy.port}/", proxy


@asynccontextmanager
async def channel(node: RabbitMqNode, **options: Any) -> AsyncIterator[str]:
    """Declare a new queue; delete it at the end."""
    name = f"bench.{uuid4().hex}"
    async with await connect(node.amqp_url) as broker:
        await broker.declare(name, **options)
        try:
            yield name
        finally:
            await broker.delete(name)


def poisson_s(rate: float, duration_s: float, seed: int) -> list[float]:
    """Draw the arrival times of a Poisson process."""
    rng, times, at_s = random.Random(seed), [], 0.0
    while (at_s := at_s + rng.expovariate(rate)) < duration_s:
        times.append(at_s)
    return times


async def offer(
    publisher: Publisher, times_s: Sequence[float], *, urgency: int = 4, body: bytes = BODY
) -> list[Timed]:
    """Publish at these times, whatever the publisher does meanwhile, and wait for all confirms.

    Dropped messages are not in the result.
    """
    timed: list[Timed] = []
    start_s = time.perf_counter()

    async def publish_one() -> None:
        called_s = time.perf_counter()
        handle = await publisher.publish(body, urgency=urgency)
        with suppress(Dropped):
            await handle.wait_confirmed()
            timed.append(Timed(called_s - start_s, time.perf_counter() - called_s))

    async with asyncio.TaskGroup() as group:
        for at_s in times_s:
            wait_s = start_s + at_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            group.create_task(publish_one())
    return sorted(timed)


async def latencies_s(
    node: RabbitMqNode,
    url: str,
    folder: Path,
    times_s: Sequence[float],
    *,
    controller: str | Controller[Any],
    batch: int = 1,
    skip_s: float = 0.5,
) -> list[float]:
    """Measure the latencies of a new publisher with a durable outbox, without the first `skip_s`."""
    async with channel(node) as name:
        outbox = folder / f"{uuid4().hex}.db"
        async with Publisher(url, channel=name, outbox=outbox, controller=controller, batch=batch) as publisher:
            timed = await offer(publisher, times_s)
    return [one.latency_s for one in timed if one.called_s >= skip_s]
