"""Killed consumers and brokers, consumers beside each other: nothing lost, nothing done twice, nobody starved."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyball import Consumer
from flyball.brokers import Message, connect
from flyball.servers.rabbitmq import RabbitMqNode, installed

_PROGRAM = """
import asyncio, json, sys
from flyball import Consumer
log = open(sys.argv[2], "a", buffering=1)
async def handle(message):
    await asyncio.sleep(0.002)
    log.write(message.id + "\\n")
asyncio.run(Consumer(sys.argv[1], handler=handle, window=8, **json.loads(sys.argv[3])).run())
"""


async def until(condition: Any, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


def handled(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_killed_consumer_loses_nothing_and_repeats_at_most_its_window(place: Any, tmp_path: Path) -> None:
    import json

    log = tmp_path / "handled"
    ids = asyncio.run(place.send([b"%d" % number for number in range(600)]))
    arguments = [sys.executable, "-c", _PROGRAM, place.url, str(log), json.dumps(place.arguments)]
    first = subprocess.Popen(arguments)
    try:
        asyncio.run(until(lambda: len(handled(log)) >= 150))
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    second = subprocess.Popen(arguments)
    try:
        asyncio.run(until(lambda: set(handled(log)) == set(ids)))
    finally:
        second.terminate()
        second.wait()
    again = sum(count - 1 for count in Counter(handled(log)).values())
    if place.log:  # acknowledgements of a log are stored as positions, a moment later
        assert again < 150
    else:
        assert again <= 2 * 8  # in flight, and acknowledgements that had not left the process


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[RabbitMqNode]:
    if not installed():
        pytest.skip("needs a broker of its own to kill: apt-get install rabbitmq-server")
    with RabbitMqNode(folder=tmp_path / "node", plugins=()) as node:
        yield node


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_killed_broker_loses_nothing_and_nothing_is_handled_twice(own_node: RabbitMqNode, kind: str) -> None:
    url = f"{own_node.amqp_url}?queue_type={kind}"

    async def scenario() -> None:
        messages = [Message(b"%d" % number) for number in range(1500)]
        async with await connect(url) as broker:
            await broker.declare("orders")
            sender = await broker.sender("orders")
            assert all(result.ok for result in await sender.send_batch(messages))
        done: list[str] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0.01)
            done.append(message.id)

        async with Consumer(url, queue="orders", handler=handle, goal="rate=300") as consumer:
            await until(lambda: len(done) >= 300)
            await asyncio.to_thread(own_node.kill)
            await asyncio.to_thread(own_node.start)
            await until(lambda: len(set(done)) == 1500)
            assert consumer.figures()["dead_lettered"] == 0
        assert Counter(done) == Counter(message.id for message in messages)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_parked_messages_do_not_starve_others_and_go_back_once(amqp_url: str, kind: str) -> None:
    import uuid

    url = f"{amqp_url}{'&' if '?' in amqp_url else '?'}queue_type={kind}"
    queue = f"parked.{uuid.uuid4().hex}"

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
                await until(lambda: slow.figures()["in_flight"] == 10)
                receiver: Any = slow._receiver
                await until(lambda: receiver.parked == 2)
                assert receiver.parked <= receiver.window
                async with Consumer(url, queue=queue, handler=quick):
                    await until(lambda: len(taken) == 2)  # what was only parked
                assert slow.figures()["in_flight"] == 10  # and nothing that is being handled
                gate.set()
            again = await broker.receiver(queue)
            assert await again.receive(timeout_s=0.5) == []

    asyncio.run(scenario())
