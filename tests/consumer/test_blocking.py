"""`Consumer.run_blocking`, for programs that are not asynchronous."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flyball import Consumer, Message, SyncPublisher
from flyball.brokers import connect

PROGRAM = """
import os
import sys
from flyball import Consumer

def handle(message):
    os.write(1, message.body + b"\\n")  # whole, whatever other threads write

Consumer(sys.argv[1], queue="orders", handler=handle).run_blocking()
print("ended")
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    with SyncPublisher(url, channel="orders", declare="queue", outbox=None) as publisher:
        publisher.publish_many([Message(b"%d" % number) for number in range(200)])
    return url


async def remaining(url: str) -> list[int]:
    async with await connect(url) as broker:
        receiver = await broker.receiver("orders", window=1000)
        return [int(delivery.message.body) for delivery in await receiver.receive(1000, timeout_s=0.5)]


def test_a_handler_ends_it_and_the_rest_stays_in_the_queue(url: str) -> None:
    handled: list[int] = []

    def handle(message: Message) -> None:
        handled.append(int(message.body))
        if len(handled) == 20:
            consumer.stop()

    consumer = Consumer(url, queue="orders", handler=handle, concurrency=1)
    consumer.run_blocking()
    assert consumer.stats.acked == len(handled) >= 20
    assert sorted(handled + asyncio.run(remaining(url))) == list(range(200))


def test_another_thread_ends_it(url: str) -> None:
    handled: set[int] = set()
    consumer = Consumer(url, queue="orders", handler=lambda message: handled.add(int(message.body)))
    thread = threading.Thread(target=consumer.run_blocking)
    thread.start()
    while len(handled) < 200:
        assert thread.is_alive()
    consumer.stop()
    thread.join()
    assert handled == set(range(200))
    assert asyncio.run(remaining(url)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_nothing_is_lost(url: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        lines = [child.stdout.readline()]
        child.send_signal(number)
        lines += child.stdout.read().splitlines()
        errors = child.stderr.read()
    assert (child.returncode, errors) == (0, "")
    assert lines[-1] == "ended"
    assert sorted([int(line) for line in lines[:-1]] + asyncio.run(remaining(url))) == list(range(200))
