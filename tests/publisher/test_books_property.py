"""Whatever targets do, in whatever order: every accepted message is confirmed, waits, or is a dead letter.

In the counters, in the outbox file and at the brokers, also after kill -9.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import uuid
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flyball import Message, OrderingConfig, Publisher
from flyball.brokers import Sender, SendResult, connect
from flyball.brokers.connections import Connections
from flyball.brokers.port import Kind, TooLarge, Unconfirmed, Unreachable
from flyball.publisher.publisher import PublisherStats, Undelivered
from flyball.publisher.target_sender import Target
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.store import DeadLetters, Outbox, SqliteDatabase

CLIENT = Path(__file__).with_name("books_client.py")
REFUSED_PART = 5
"""One message in so many is refused by a target, each target refuses others."""


class Application(Exception):
    """An error of the program that uses the publisher."""


def is_refused(url: str, id: str) -> bool:
    return zlib.crc32(f"{url} {id}".encode()) % REFUSED_PART == 0


class Site:
    """Brokers, and what they do at the moment."""

    def __init__(self, urls: Sequence[str], rng: random.Random) -> None:
        self.urls, self.rng = list(urls), rng
        self.down: set[str] = set()


class Moody:
    """A sender that refuses certain messages for good, fails while its broker is down, and now and then."""

    def __init__(self, sender: Sender, url: str, site: Site) -> None:
        self._sender, self._url, self._site, self.blocked = sender, url, site, False

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        assert sequence is None
        rng = self._site.rng
        await asyncio.sleep(0.002 * rng.random())
        if self._url in self._site.down:
            raise Unreachable("the broker is down")
        taken = [message for message in messages if not is_refused(self._url, message.id)]
        known = {result.id: result for result in await self._sender.send_batch(taken)} if taken else {}
        lost = rng.random() < 0.2  # the connection is lost after the broker has stored them
        return [
            SendResult(message.id, TooLarge("too large for this broker"))
            if is_refused(self._url, message.id)
            else SendResult(message.id, Unconfirmed("the connection was lost"))
            if lost and rng.random() < 0.5
            else known[message.id]
            for message in messages
        ]

    async def last_sequence(self) -> int | None:
        return await self._sender.last_sequence()

    async def close(self) -> None:
        await self._sender.close()


def check_books(stats: PublisherStats) -> None:
    assert stats.accepted + stats.from_outbox == stats.confirmed + stats.rejected + stats.waiting, stats
    assert stats.waiting >= 0, stats


async def ids_at(url: str, log: str = "orders") -> set[str]:
    async with await connect(url) as broker:
        first, end = await broker.bounds(log, 0)
        return {record.message.id async for part in broker.read(log, 0, first, end) for record in part}


def ids_in(path: Path) -> tuple[set[str], set[str]]:
    with SqliteDatabase(path) as database:
        waiting = {pending.message.id for pending in Outbox(database).read(0, 1 << 62, 100_000)}
        return waiting, {letter.message.id for letter in DeadLetters(database).read_many(100_000)}


async def check_places(
    site: Site, required: int, accepted: set[str], waiting: set[str], dead: set[str], *, settled: bool
) -> None:
    """Every accepted message is at enough brokers, or waits, or is a dead letter because too many refuse it."""
    found = [await ids_at(url) for url in site.urls]
    for id in accepted:
        takers = sum(not is_refused(url, id) for url in site.urls)
        at = sum(id in ids for ids in found)
        if takers < required:
            assert id in dead or (not settled and id in waiting), f"{id} was to be rejected"
        else:
            assert id not in dead, f"{id} was rejected although {takers} targets take it"
            assert at >= required or (not settled and id in waiting), f"{id} is at {at} targets only"
    assert waiting <= accepted
    assert not settled or not waiting
    for url, ids in zip(site.urls, found, strict=True):
        assert not any(is_refused(url, id) for id in ids)


async def live(publisher: Publisher, site: Site, prefix: str, accepted: set[str], *, last: bool) -> None:
    """Publish while brokers go down and come back; the last life ends with everything settled."""
    rng = site.rng
    for step in range(rng.randrange(10, 40)):
        event = rng.random()
        if event < 0.15:
            site.down.symmetric_difference_update({rng.choice(site.urls)})
        elif event < 0.3:
            await asyncio.sleep(0.01 * rng.random())
        else:
            ids = [f"{prefix}-{step}-{number}" for number in range(rng.choice([1, 1, 7, 60]))]
            await publisher.publish_many([Message(b"x", id) for id in ids])
            accepted.update(ids)
        check_books(publisher.stats)
    if not last:
        if rng.random() < 0.5:
            raise Application
        return
    site.down.clear()
    await publisher.drain()
    check_books(publisher.stats)
    assert publisher.stats.waiting == 0


@pytest.mark.parametrize("outbox", ["memory", "file"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize(("targets", "required"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
def test_the_books_hold_whatever_targets_do(
    targets: int,
    required: int,
    kind: str,
    outbox: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    names = [uuid.uuid4().hex for _ in range(targets)]
    urls = [f"memory://{name}" if kind == "memory" else f"sqlite:///{tmp_path / name}.db" for name in names]
    site = Site(urls, rng)
    opened = Target.open

    async def open_moody(self: Target, connections: Connections, *, again: bool = False) -> Any:
        if self.url in site.down:
            raise Unreachable("the broker is down")
        connection, sender = await opened(self, connections, again=again)
        return connection, Moody(sender, self.url, site)

    monkeypatch.setattr(Target, "open", open_moody)
    monkeypatch.setattr("flyball.publisher.relay._MAX_IN_MEMORY", 50)
    path = tmp_path / "outbox.db"

    async def run_publisher(number: int, lives: int) -> None:
        last = number == lives - 1
        publisher = Publisher(
            targets=site.urls,
            required_confirms=required,
            channel="orders",
            declare="log",
            outbox=None if outbox == "memory" else path,
            ordering=rng.choice([None, OrderingConfig()]),
            close_timeout_s=600.0 if last else 0.05 * rng.random(),
        )
        with suppress(Application, Undelivered):
            async with publisher:
                await live(publisher, site, f"{number}", accepted, last=last)
                dead.update(letter.message.id for letter in await publisher.dead_letters(100_000))
        check_books(publisher.stats)

    accepted: set[str] = set()
    dead: set[str] = set()

    async def main() -> None:
        for url in site.urls:
            async with await connect(url) as broker:
                await broker.declare("orders", "log")
        lives = 1 if outbox == "memory" else 3
        for number in range(lives):
            if number == lives - 1:
                site.down.clear()
            await run_publisher(number, lives)
            waiting, in_file = (set(), dead) if outbox == "memory" else ids_in(path)
            settled = number == lives - 1
            await check_places(site, required, accepted, waiting, in_file, settled=settled)

    try:
        asyncio.run(main())
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.fixture(params=["sqlite", "rabbitmq", "rabbitmq_stream", "kafka"])
def second(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a broker that takes every message."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'second.db'}"
    if request.param == "kafka":
        return str(request.getfixturevalue("kafka_url"))
    node: RabbitMqNode = request.getfixturevalue("rabbitmq")
    return node.amqp_url if request.param == "rabbitmq" else node.stream_url


@pytest.mark.parametrize("required", [1, 2])
def test_the_books_hold_after_kill_9(required: int, second: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    channel = f"orders-{uuid.uuid4().hex[:8]}"
    small = f"sqlite:///{tmp_path / 'small.db'}"
    outbox = tmp_path / "outbox.db"
    asyncio.run(declare(small, channel, "log"))
    asyncio.run(declare(second, channel, "queue" if second.startswith("amqp") else "log"))
    SqliteDatabase(outbox).close()
    accepted: set[str] = set()
    at_second: set[str] = set()
    for kill in range(5):
        last = kill == 4
        command = [sys.executable, str(CLIENT), str(outbox), channel, small, second]
        command += [str(required), f"k{kill}", "50" if last else "5000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            stop_after = rng.randrange(1, 200)
            for count, line in enumerate(child.stdout):
                if line.endswith("\n"):
                    accepted.add(line.split()[1])
                if not last and count == stop_after:
                    child.kill()
        assert not last or child.returncode == 0
        waiting, dead = ids_in(outbox)
        at_small = asyncio.run(ids_at(small, channel))
        at_second |= asyncio.run(take_ids(second, channel))
        for id in accepted:
            enough = (id in at_small) + (id in at_second) >= required
            assert enough or id in waiting or id in dead, f"seed {seed}: {id} is lost"
            assert (id in dead) <= (required == 2 and "large" in id), f"seed {seed}: {id} was rejected"
        assert not waiting & dead, f"seed {seed}"
        assert not any("large" in id for id in at_small), f"seed {seed}"
    asyncio.run(delete(second, channel))
    assert not waiting, f"seed {seed}"
    large = {id for id in accepted if "large" in id}
    assert at_second >= large, f"seed {seed}"
    if required == 2:
        assert dead >= large, f"seed {seed}"
        assert at_small >= accepted - large, f"seed {seed}"
        assert at_second >= accepted, f"seed {seed}"
    else:
        assert at_small | at_second >= accepted, f"seed {seed}"


async def declare(url: str, channel: str, kind: Kind) -> None:
    async with await connect(url) as broker:
        await broker.declare(channel, kind)


async def delete(url: str, channel: str) -> None:
    async with await connect(url) as broker:
        await broker.delete(channel)


async def take_ids(url: str, channel: str) -> set[str]:
    """The ids in a log, or in a queue, which is empty afterwards."""
    if not url.startswith("amqp"):
        return await ids_at(url, channel)
    ids: set[str] = set()
    async with await connect(url) as broker:
        receiver = await broker.receiver(channel, window=1000)
        while await broker.depth(channel):
            deliveries = await receiver.receive(1000, timeout_s=1.0)
            ids.update(delivery.message.id for delivery in deliveries)
            await receiver.ack(*deliveries)
    return ids
