"""Killed consumers and brokers, consumers beside each other: nothing lost, nothing done twice, nobody starved."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball import Consumer
from flyball.brokers import Message, connect
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


# --- a channel that is deleted and declared again ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite", "classic", "quorum", "kafka"])
def test_a_consumer_goes_on_when_its_channel_was_deleted_and_is_declared_again(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    if kind in ("memory", "sqlite"):
        urls = {"memory": f"memory://{fresh()}", "sqlite": f"sqlite:///{tmp_path / 'events.db'}"}
        channel = ChannelUnderTest(urls[kind], fresh(), log=False)
    elif kind in ("classic", "quorum"):
        url = request.getfixturevalue("amqp_url")
        channel = ChannelUnderTest(f"{url}{'&' if '?' in url else '?'}queue_type={kind}", fresh(), log=False)
    elif kind == "stream":
        channel = ChannelUnderTest(request.getfixturevalue("rabbitmq").stream_url, fresh(), log=True)
    else:
        channel = ChannelUnderTest(request.getfixturevalue("kafka_url"), fresh(), log=True)

    async def scenario() -> None:
        done: list[bytes] = []

        async def handle(message: Message) -> None:
            done.append(message.body)

        async with await connect(channel.url) as broker:
            await channel.send([b"old %d" % number for number in range(30)])
            async with Consumer(channel.url, handler=handle, window=5, **channel.arguments) as consumer:
                await until(lambda: consumer.stats.acked == 30)
                await broker.delete(channel.name)
                await asyncio.sleep(1.5)
                new = [b"new %d" % number for number in range(50)]  # more than the old one had
                await channel.send(new[:20])
                await channel.send(new[20:])
                await until(lambda: {*new} <= {*done})
        assert Counter(done).most_common(1)[0][1] == 1

    asyncio.run(scenario())


# --- killed brokers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream", "kafka"])
def test_a_killed_broker_loses_nothing_and_nothing_is_handled_twice(
    request: pytest.FixtureRequest, kind: str
) -> None:
    server: Any = request.getfixturevalue("own_kafka" if kind == "kafka" else "own_rabbitmq")
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


def test_a_file_that_was_locked_for_a_while_stops_no_consumer(tmp_path: Path) -> None:
    """Neither receiving nor acknowledging, and no slot of the window is lost."""
    url = f"sqlite:///{tmp_path}/broker.db?busy_timeout_s=0.02"
    seen: Counter[str] = Counter()

    async def handle(message: Message) -> None:
        seen[message.id] += 1
        await asyncio.sleep(0.001)

    async def scenario() -> None:
        async with await connect(url) as broker:
            await broker.declare("jobs")
            sender = await broker.sender("jobs")
            sent = [Message(b"%d" % at) for at in range(300)]
            await sender.send_batch(sent)
            async with Consumer(url, queue="jobs", handler=handle, window=3):
                for share in (50, 150):
                    await until(partial(lambda share: len(seen) >= share, share))
                    other = sqlite3.connect(tmp_path / "broker.db", isolation_level=None)
                    other.execute("BEGIN IMMEDIATE")
                    await asyncio.sleep(0.2)  # several times as long as the broker waits
                    other.execute("ROLLBACK")
                    other.close()
                await until(lambda: len(seen) == 300)
            assert await broker.depth("jobs") == 0
            assert set(seen.values()) == {1}

    asyncio.run(scenario())
