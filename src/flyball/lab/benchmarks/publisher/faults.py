"""Faults: congestion of three kinds, and kill -9; every accepted message must arrive.

Congestion: a queue of 100 KB with a slow subscriber, a memory alarm, a proxy that stalls. Beside ours stands what
the publisher paper calls untuned: N and T_poll fixed, an outbox of 100 KB, and messages that do not fit are
dropped. Crash: a publisher process is killed at random points and started again on the same outbox; what it said
it had accepted must all arrive.
"""

from __future__ import annotations

import asyncio
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from flyball import OutboxConfig, Publisher
from flyball.brokers import connect
from flyball.control.controllers.publishing.static import Static
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.publisher.traffic import channel, delayed_url, offer, poisson_s
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode

_BODY = bytes(1000)
_LOAD = 300.0


def cases(context: BenchContext, node: RabbitMqNode) -> Iterator[Row]:
    for kind in ("bounded queue",) if context.quick else ("bounded queue", "memory alarm", "stalled proxy"):
        lost, dropped, grown_mb = asyncio.run(_run_congested(context, node, kind, untuned=False))
        _, also_dropped, _ = asyncio.run(_run_congested(context, node, kind, untuned=True))
        yield context.row(f"congestion {kind} lost", lost, "messages", goal=0.0)
        yield context.row(f"congestion {kind} dropped", dropped, "messages", goal=0.0)
        yield context.row(
            f"congestion {kind} dropped untuned", also_dropped, "messages", goal=1.0, better="higher"
        )
        yield context.row(f"congestion {kind} memory", grown_mb, "MB more", goal=100.0)
    kills = 3 if context.quick else 50
    lost, accepted, repeated = asyncio.run(_run_with_kills(context, node, kills))
    context.note(f"  {kills} kills: {accepted} accepted, {repeated} repeats")
    yield context.row(f"kill -9 {kills} times lost", lost, "messages", goal=0.0)


def _publisher(url: str, name: str, outbox: Path, untuned: bool) -> Publisher:
    if not untuned:
        return Publisher(url, channel=name, outbox=outbox, close_timeout_s=120.0)
    controller = Static(batch=10, poll_s=0.05, window=80)
    small = OutboxConfig(None, max_bytes=100_000)
    return Publisher(url, channel=name, outbox=small, when_full="drop", controller=controller)


async def _run_congested(
    context: BenchContext, node: RabbitMqNode, kind: str, *, untuned: bool
) -> tuple[float, float, float]:
    """Return messages lost, messages dropped, and the growth of memory in MB."""
    options = {"max_bytes": 100_000} if kind == "bounded queue" else {}
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    round_trip_s = 0.013 if kind == "stalled proxy" else 0.0
    with delayed_url(node, round_trip_s) as (url, proxy):
        async with channel(node, **options) as name, await connect(node.amqp_url) as broker:
            receiver = await broker.receiver(name, window=20)
            got: set[str] = set()
            pause_s = [0.4 if kind == "bounded queue" else 0.0]

            async def subscribe() -> None:
                while True:
                    deliveries = await receiver.receive(20)
                    await asyncio.sleep(pause_s[0])
                    got.update(one.message.id for one in deliveries)
                    await receiver.ack(*deliveries)

            subscriber = asyncio.create_task(subscribe())
            outbox = context.workdir / f"{uuid4().hex}.db"
            async with _publisher(url, name, outbox, untuned) as publisher:
                offering = asyncio.create_task(offer(publisher, poisson_s(_LOAD, 5.0, context.seed), body=_BODY))
                await asyncio.sleep(1.0)
                await _disturb(node, proxy, kind)
                pause_s[0] = 0.0  # the subscriber is back
                await offering
                await publisher.drain()
                stats = publisher.stats
            deadline_s = time.monotonic() + 60.0
            while len(got) < stats.accepted and time.monotonic() < deadline_s:
                await asyncio.sleep(0.1)
            subscriber.cancel()
            await asyncio.gather(subscriber, return_exceptions=True)
            await receiver.close()
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024.0
    return float(stats.accepted - len(got)), float(stats.dropped + stats.refused), grown_mb


async def _disturb(node: RabbitMqNode, proxy: FaultProxy | None, kind: str) -> None:
    if kind == "memory alarm":
        await asyncio.to_thread(node.set_memory_alarm, True)
    elif proxy is not None:
        proxy.stall()
    await asyncio.sleep(3.0)
    if kind == "memory alarm":
        await asyncio.to_thread(node.set_memory_alarm, False)
    elif proxy is not None:
        proxy.flow()


async def _run_with_kills(context: BenchContext, node: RabbitMqNode, kills: int) -> tuple[float, int, int]:
    """Return messages lost, messages accepted, and repeated arrivals."""
    rng, outbox = random.Random(context.seed), context.workdir / f"{uuid4().hex}.db"
    accepted: set[str] = set()
    arrived: list[str] = []
    async with channel(node) as name:
        for kill in range(kills + 1):
            command = [sys.executable, "-m", __name__, node.amqp_url, name, str(outbox), str(kill), str(kills)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            if kill < kills:
                timer = asyncio.get_running_loop().call_later(1.5 + 1.5 * rng.random(), process.kill)
            output, _ = await asyncio.to_thread(process.communicate)
            if kill < kills:
                timer.cancel()
            # the last line may have been cut by the kill
            accepted.update(line for line in output.splitlines() if len(line) == 32)
        async with await connect(node.amqp_url) as broker:
            receiver = await broker.receiver(name, window=1000)
            while deliveries := await receiver.receive(1000, timeout_s=2.0):
                arrived += [one.message.id for one in deliveries]
                await receiver.ack(*deliveries)
            await receiver.close()
    return float(len(accepted - set(arrived))), len(accepted), len(arrived) - len(set(arrived))


async def _publish_until_killed(url: str, name: str, outbox: str, last: bool) -> None:
    """Publish without end and print each id once it is accepted; `last`: only send what is left in the outbox."""
    async with Publisher(url, channel=name, outbox=outbox) as publisher:
        while not last:
            handle = await publisher.publish(_BODY)
            sys.stdout.write(f"{handle.id}\n")
            sys.stdout.flush()
        await publisher.drain()


if __name__ == "__main__":
    _url, _name, _outbox, _kill, _kills = sys.argv[1:]
    asyncio.run(_publish_until_killed(_url, _name, _outbox, _kill == _kills))
