"""Members on real brokers that are killed, paused, and lose their leader or their broker.

Checked at the end of every run: every message had its effect, once and in order. While faults last, no queue is
without effects for longer than the session time-out and a heartbeat, and what a busy machine adds.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from flyball.brokers import Message, connect
from flyball.brokers.port import Broker, Sender
from flyball.errors import FlyballError
from flyball.lab.rigs.groups.partition_keys import partition_keys
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.store import SqliteDatabase
from tests.groups.member_process import HEARTBEAT_S, SESSION_S
from tests.groups.processes import SLACK_S, MemberProcesses

_EVERY_S = 0.05


class Publisher:
    """Sends numbered messages to all queues until it is stopped; one that may have been lost is sent again."""

    def __init__(self, url: str, topic: str, queues: int) -> None:
        self._url, self._topic, self._queues = url, topic, queues
        self.sent = [0] * queues
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "the publisher did not end"

    async def _run(self) -> None:
        async with await connect(self._url) as broker:
            log = not broker.capabilities.queues
            keys = await partition_keys(broker, self._queues) if log else [None] * self._queues
            await asyncio.gather(
                *(self._publish(broker, queue, keys[queue], log) for queue in range(self._queues))
            )

    async def _publish(self, broker: Broker, queue: int, key: bytes | None, log: bool) -> None:
        sender: Sender | None = None
        while not self._stop.is_set():
            number = self.sent[queue]
            try:
                if sender is None:
                    sender = await broker.sender(self._topic if log else f"{self._topic}.{queue}")
                message = Message(b"%d" % number, id=f"{self._topic}-{queue}-{number}", key=key)
                (result,) = await sender.send_batch([message])
                self.sent[queue] += result.ok
            except FlyballError:
                await asyncio.sleep(0.2)
            await asyncio.sleep(_EVERY_S)


class BrokerProcesses(MemberProcesses):
    """Members that read a topic of a broker."""

    recent_s = 1.0

    def __init__(self, folder: Path, url: str, queues: int) -> None:
        super().__init__(folder, f"sqlite:///{folder}/groups.db", queues)
        self.url, self.topic = url, f"orders-{uuid.uuid4().hex[:8]}"
        with SqliteDatabase(self.sink) as database:
            table = "CREATE TABLE early (number INTEGER, message INTEGER, due INTEGER, member TEXT)"
            database.write(lambda t: t.execute(table).rowcount)

    def command(self, name: str, store: str) -> list[str]:
        program = [sys.executable, "-m", "tests.groups.broker_member"]
        return [*program, store, str(self.sink), name, str(self.queues), self.url, self.topic]

    def positions(self) -> list[int]:
        with closing(sqlite3.connect(self.sink)) as sink:
            found = dict(sink.execute("SELECT number, next FROM position").fetchall())
        return [found.get(number, 0) for number in range(self.queues)]

    def await_all(self, publisher: Publisher) -> None:
        """Wait until every message that was sent had its effect; nothing came too early, so none was lost."""
        publisher.stop()
        self.wait_for(lambda: True if self.positions() >= publisher.sent else None)
        with closing(sqlite3.connect(self.sink)) as sink:
            assert sink.execute("SELECT * FROM early").fetchall() == []


@contextmanager
def _group(folder: Path, url: str, queues: int, *names: str) -> Iterator[BrokerProcesses]:
    group = BrokerProcesses(folder, url, queues)
    asyncio.run(_declare(url, group.topic, queues))
    publisher: Publisher | None = None
    try:
        group.start(*names)
        publisher = Publisher(url, group.topic, queues)
        group.await_owners(*names)
        yield group
        group.await_all(publisher)
    finally:
        if publisher is not None:
            publisher.stop()
        group.stop_all()
    group.check_effects()


async def _declare(url: str, topic: str, queues: int) -> None:
    async with await connect(url) as broker:
        if not broker.capabilities.queues:
            await broker.declare(topic, "log", partitions=queues)
            return
        for number in range(queues):
            await broker.declare_group_queue(f"{topic}.{number}")  # type: ignore[attr-defined]


@pytest.fixture(params=["classic", "quorum-4", "kafka"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "classic":
        return f"{request.getfixturevalue('rabbitmq').url}&queue_type=classic"
    if request.param == "quorum-4":
        return str(request.getfixturevalue("rabbitmq_4").url)
    return str(request.getfixturevalue("kafka_url"))


def test_kills_and_pauses_of_a_member_and_of_the_leader(url: str, tmp_path: Path) -> None:
    by_priority = url.startswith("amqp") and "classic" not in url  # elsewhere one kill and one pause are enough
    names = ["m1", "m2", "m3"]
    with _group(tmp_path, url, 4, *names) as group:
        since_s = group.calm_since_s
        leader = group.leader()
        for victim in (next(name for name in names if name != leader), *([leader] if by_priority else [])):
            group.kill(victim)
            group.await_owners(*(name for name in names if name != victim))
            group.start(victim)
            group.await_owners(*names)
        leader = group.leader()
        for victim in (*([next(name for name in names if name != leader)] if by_priority else []), leader):
            group.pause(victim)
            group.await_owners(*(name for name in names if name != victim))  # past its session, and its lease
            assert group.leader() != victim
            group.resume(victim)
            group.await_owners(*names)
        assert group.longest_gap_s(since_s) < SESSION_S + HEARTBEAT_S + SLACK_S


def test_more_members_than_queues(url: str, tmp_path: Path) -> None:
    names = ["m1", "m2", "m3", "m4"]
    with _group(tmp_path, url, 2, *names) as group:
        busy = sorted(set(group.await_owners(*names).values()))
        group.kill(*busy)
        group.await_owners(*(name for name in names if name not in busy))


def test_a_node_that_restarts(own_rabbitmq_4: RabbitMqNode, tmp_path: Path) -> None:
    """By priority: all members subscribe anew, in whatever order, and the queues come to their owners."""
    node = own_rabbitmq_4
    names = ["m1", "m2", "m3"]
    with _group(tmp_path, node.url, 4, *names) as group:
        for number in range(group.queues):
            node.await_registered(f"{group.topic}.{number}")
        node.kill()
        node.start()
        group.await_owners(*names)
        node.restart()
        group.await_owners(*names)
