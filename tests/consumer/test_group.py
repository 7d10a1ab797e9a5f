"""Consumers as members of a group: each queue is read by one of them, and changes hands without loss."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from flyball import Consumer
from flyball.brokers import Message, connect
from flyball.consumer.config import ConsumerFile
from flyball.errors import InvalidValue
from flyball.groups.config import GroupConfig
from flyball.lab.rigs.groups.partition_keys import partition_keys
from flyball.loops.toml import load_toml
from tests.consumer.queues import until

QUEUES = 4


@pytest.fixture(params=["sqlite", "classic", "quorum-4", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'broker.db'}"
    if request.param == "classic":
        return f"{request.getfixturevalue('rabbitmq').url}&queue_type=classic"
    if request.param == "quorum-4":
        return str(request.getfixturevalue("rabbitmq_4").url)
    return str(request.getfixturevalue("kafka_url"))


class Group:
    """A topic of four queues, and what its members handled."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.topic = url, f"orders-{uuid.uuid4().hex[:8]}"
        self._store = f"sqlite:///{folder / 'groups.db'}"
        self.handled: dict[int, list[tuple[str, int]]] = defaultdict(list)

    def config(self, **options: Any) -> GroupConfig:
        return GroupConfig(
            name=self.topic,
            topics={self.topic: QUEUES},
            store=self._store,
            heartbeat_s=0.2,
            session_timeout_s=30.0,  # nothing expires, however busy the machine is
            coalesce_s=0.1,
            **options,
        )

    def consumer(self, name: str, **options: Any) -> Consumer:
        async def handle(message: Message) -> None:
            queue, number = map(int, message.body.split())
            self.handled[queue].append((name, number))
            await asyncio.sleep(0.001)

        return Consumer(self.url, group=self.config(), handler=handle, name=name, window=8, **options)

    async def send(self, first: int, last: int) -> None:
        async with await connect(self.url) as broker:
            log = not broker.capabilities.queues
            keys = await partition_keys(broker, QUEUES) if log else [None] * QUEUES
            for queue in range(QUEUES):
                sender = await broker.sender(self.topic if log else f"{self.topic}.{queue}")
                bodies = [b"%d %d" % (queue, number) for number in range(first, last)]
                results = await sender.send_batch([Message(body, key=keys[queue]) for body in bodies])
                assert all(result.ok for result in results)
                await sender.close()

    def count(self) -> int:
        return sum(map(len, self.handled.values()))

    def check(self, last: int) -> None:
        """Everything once, and in order."""
        for queue in range(QUEUES):
            assert [number for _, number in self.handled[queue]] == list(range(last))

    def owners(self, first: int) -> set[str]:
        return {name for entries in self.handled.values() for name, number in entries if number >= first}


def test_members_share_the_queues_and_take_over(url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        group = Group(url, tmp_path)
        if url.startswith("kafka"):
            async with await connect(url) as broker:
                await broker.declare(group.topic, "log", partitions=QUEUES)
        async with group.consumer("a", goal="rate=2000") as a:
            await until(lambda: len(a.stats.owned) == QUEUES)
            await group.send(0, 50)
            await until(lambda: group.count() == QUEUES * 50)
            async with group.consumer("b") as b:
                await until(lambda: len(a.stats.owned) == len(b.stats.owned) == QUEUES // 2)
                assert not a.stats.owned.keys() & b.stats.owned.keys()
                await group.send(50, 150)
                await until(lambda: group.count() >= QUEUES * 150)
                assert group.owners(50) == {"a", "b"}
            assert b.stats.owned == {}
            await until(lambda: len(a.stats.owned) == QUEUES)
            await group.send(150, 200)
            await until(lambda: group.count() >= QUEUES * 200)
            assert group.owners(150) == {"a"}
            group.check(200)
            assert a.stats.forced_hand_overs == b.stats.forced_hand_overs == 0
            assert a.stats.clean_hand_overs == QUEUES // 2
            assert a.stats.depth is not None

    asyncio.run(scenario())


_PROGRAM = """
import asyncio, sys
from flyball import Consumer
from flyball.groups.config import GroupConfig
url, store, topic, path = sys.argv[1:]
log = open(path, "a", buffering=1)
async def handle(message):
    log.write(message.body.decode() + "\\n")
    await asyncio.sleep(0.005)
times = dict(heartbeat_s=0.2, session_timeout_s=3.0, coalesce_s=0.1)
config = GroupConfig(name=topic, topics={topic: 4}, store=store, **times)
asyncio.run(Consumer(url, group=config, handler=handle, window=8).run())
"""


def test_a_killed_member_is_replaced_and_loses_nothing(url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        group = Group(url, tmp_path)
        if url.startswith("kafka"):
            async with await connect(url) as broker:
                await broker.declare(group.topic, "log", partitions=QUEUES)
        path = tmp_path / "handled"
        arguments = [group.url, group.config().store, group.topic, str(path)]
        process = subprocess.Popen([sys.executable, "-c", _PROGRAM, *arguments])
        try:
            async with group.consumer("a") as a:
                await until(lambda: len(a.stats.owned) == QUEUES // 2)
                await group.send(0, 300)
                await until(lambda: path.exists() and len(path.read_text().splitlines()) >= 100)
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                theirs = {(int(q), int(n)) for q, n in map(str.split, path.read_text().splitlines())}
                await until(
                    lambda: (
                        len(theirs | {(q, n) for q, found in group.handled.items() for _, n in found})
                        == QUEUES * 300
                    )
                )
                await until(lambda: len(a.stats.owned) == QUEUES)
                ours = [(q, n) for q, found in group.handled.items() for _, n in found]
                assert len(ours) == len(set(ours)), "nothing twice by the same member"
                # What was being handled, or had just been, is handled again: at most a window and what waits for
                # its acknowledgement to be stored.
                assert len(theirs & set(ours)) <= 100
        finally:
            process.kill()
            process.wait()

    asyncio.run(scenario())


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    config = Group("memory://x", tmp_path).config()

    async def handle(message: Message) -> None: ...

    with pytest.raises(InvalidValue, match="or group alone as a GroupConfig"):
        Consumer("memory://x", group=config, queue="orders", handler=handle)
    with pytest.raises(InvalidValue, match="or group alone as a GroupConfig"):
        Consumer("memory://x", group=config, channel="orders", handler=handle)
    topic = next(iter(config.topics))
    with pytest.raises(InvalidValue, match="must be another channel"):
        Consumer("memory://x", group=config, handler=handle, dead_letter=f"{topic}.3")
    Consumer("memory://x", group=config, handler=handle, dead_letter=f"{topic}.dead")


def test_a_file_describes_a_member(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(
        '[consumer]\nurl = "memory://x"\nhandler = "json:loads"\n'
        '[consumer.group]\nname = "shop"\nstore = "sqlite:///groups.db"\n[consumer.group.topics]\norders = 8\n'
    )
    found = load_toml(path, ConsumerFile).consumer.group
    assert isinstance(found, GroupConfig)
    assert found.queue_counts == {"orders": 8}
    assert load_toml(path, ConsumerFile).make().name == "shop"
    path.write_text(path.read_text().replace("orders = 8", "orders = 0"))
    with pytest.raises(InvalidValue, match=r"consumer.group: .*topics.*0"):
        load_toml(path, ConsumerFile)
