"""Killed consumers and brokers, consumers beside each other: nothing lost, nothing done twice, nobody starved."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball import Consumer
from flyball.brokers import Message, connect
from flyball.servers.rabbitmq import RabbitMqNode, installed
from tests.consumer.queues import ChannelUnderTest, fresh, until

_PROGRAM = """
import asyncio, json, sys
from flyball import Consumer
log = open(sys.argv[2], "a", buffering=1)
async def handle(message):
    await asyncio.sleep(0.002)
    log.write(message.id + "\\n")
asyncio.run(Consumer(sys.argv[1], handler=handle, window=8, **json.loads(sys.argv[3])).run())
"""


def handled(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def not_acknowledged(channel: ChannelUnderTest, ids: list[str]) -> set[str]:
    """What the broker itself still holds for the consumers; asked when none of them lives."""
    if channel.log:  # one partition, which the group's position divides

        async def depth() -> int:
            async with await connect(channel.url) as broker:
                return await broker.depth(channel.name, "workers")

        return set(ids[len(ids) - asyncio.run(depth()) :])
    connection = pika.BlockingConnection(pika.URLParameters(channel.url.partition("?")[0]))
    amqp = connection.channel()
    while amqp.queue_declare(channel.name, passive=True).method.consumer_count:
        time.sleep(0.01)  # the dead consumer's messages have not gone back yet
    waiting = set()
    while (got := amqp.basic_get(channel.name))[0] is not None:
        waiting.add(got[1].message_id)
    connection.close()  # they go back
    return waiting


@pytest.mark.parametrize("seed", [7])
def test_killed_consumers_lose_nothing_and_repeat_nothing_that_was_acknowledged(
    channel: ChannelUnderTest, tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    ids = asyncio.run(channel.send([b"%d" % number for number in range(600)]))
    arguments = [sys.executable, "-c", _PROGRAM, channel.url]
    logs = [tmp_path / f"handled.{turn}" for turn in range(4)]
    acknowledged: set[str] = set()
    for log in logs:
        waiting = set(ids) - acknowledged
        enough = len(waiting) if log is logs[-1] else chosen.randint(40, 150)
        process = subprocess.Popen([*arguments, str(log), json.dumps(channel.arguments)])
        try:
            asyncio.run(until(lambda log=log, enough=enough: len(handled(log)) >= enough))  # type: ignore[misc]  # mypy and defaults
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        done = handled(log)
        assert len(done) == len(set(done)), f"seed {seed}: handled twice by one consumer"
        assert not set(done) & acknowledged, f"seed {seed}: handled again after its acknowledgement"
        before, acknowledged = acknowledged, set(ids) - not_acknowledged(channel, ids)
        assert acknowledged > before, f"seed {seed}: this turn shows nothing"
        assert acknowledged - before <= set(done), f"seed {seed}: acknowledged and not handled"
        if not channel.log:  # a log's acknowledgements are stored as positions, a moment later
            assert len(set(done) - acknowledged) <= 2 * 8, f"seed {seed}: more than in flight and on its way"
    assert {id for log in logs for id in handled(log)} == set(ids)


# --- killed brokers ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_node() -> Iterator[RabbitMqNode]:
    """A node to kill, that has had a stream for a moment (before that it would forget its streams)."""
    if not installed():
        pytest.skip("needs a broker of its own to kill: apt-get install rabbitmq-server")
    with RabbitMqNode() as node:
        asyncio.run(ChannelUnderTest(node.stream_url, fresh(), log=True).send([]))
        node.await_registered("rabbit_stream_coordinator")
        yield node


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream", "kafka"])
def test_a_killed_broker_loses_nothing_and_nothing_is_handled_twice(
    request: pytest.FixtureRequest, kind: str
) -> None:
    server: Any = request.getfixturevalue("own_kafka" if kind == "kafka" else "own_node")
    if kind in ("classic", "quorum"):
        channel = ChannelUnderTest(f"{server.amqp_url}?queue_type={kind}", fresh(), log=False)
    else:
        channel = ChannelUnderTest(server.stream_url if kind == "stream" else server.url, fresh(), log=True)

    async def scenario() -> None:
        ids = await channel.send([b"%d" % number for number in range(1000)])
        if kind == "quorum":
            await asyncio.to_thread(server.await_registered, channel.name)
        done: list[str] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0.01)
            done.append(message.id)

        async with Consumer(channel.url, handler=handle, goal="rate=300", **channel.arguments) as consumer:
            await until(lambda: len(done) >= 250)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await until(lambda: len(set(done)) == 1000)
            assert consumer.stats.dead_lettered == 0
        assert Counter(done) == Counter(ids)

    asyncio.run(scenario())


# --- beside each other -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_parked_messages_do_not_starve_others_and_go_back_once(amqp_url: str, kind: str) -> None:
    url = f"{amqp_url}{'&' if '?' in amqp_url else '?'}queue_type={kind}"
    queue = fresh()

    async def scenario() -> None:
        gate = asyncio.Event()

        async def stuck(_: Message) -> None:
            await gate.wait()

        taken: list[str] = []

        async def quick(message: Message) -> None:
            taken.append(message.id)

        async with await connect(url) as broker:
            await broker.declare(queue)
            sender = await broker.sender(queue)
            await sender.send_batch([Message(b"%d" % number) for number in range(12)])
            slow = Consumer(url, queue=queue, handler=stuck, goal="rate=1", mode="shadow", window=10)
            async with slow:
                await until(lambda: slow.stats.in_flight == 10)
                receiver: Any = slow._receiver
                await until(lambda: receiver.parked == 2)
                assert receiver.parked <= receiver.window
                async with Consumer(url, queue=queue, handler=quick):
                    await until(lambda: len(taken) == 2)  # what was only parked
                assert slow.stats.in_flight == 10  # and nothing that is being handled
                gate.set()
            again = await broker.receiver(queue)
            assert await again.receive(timeout_s=0.5) == []

    asyncio.run(scenario())
