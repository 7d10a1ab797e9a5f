"""A publisher and a broker with faults: frozen, killed, out of memory, behind a network that stalls.

In each case the program goes on publishing meanwhile. Nothing accepted is lost, nothing dropped, what waits stays
within its bounds, and afterwards it goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flyball import OrderingConfig, OutboxConfig, Publisher
from flyball.brokers import connect
from flyball.brokers.port import Kind
from flyball.servers.kafka import KafkaServer
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode, installed

BUFFER = 20
MAX_BYTES = 60_000
BODY = bytes(1000)


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitMqNode]:
    """A node that these tests may kill, freeze and starve; each leaves it running."""
    if not installed():
        pytest.skip("needs a broker of its own to harm: apt-get install rabbitmq-server")
    with RabbitMqNode(plugins=("rabbitmq_stream",)) as node:
        asyncio.run(declare_log(node.stream_url))
        node.await_registered("rabbit_stream_coordinator")  # killed before, it would forget its streams
        yield node


async def declare_log(url: str) -> None:
    async with await connect(url) as broker:
        await broker.declare("first", "log")


@dataclass(frozen=True)
class Site:
    """A broker to harm and where to publish on it."""

    server: RabbitMqNode | KafkaServer
    url: str
    kind: Kind


@pytest.fixture(params=["queue", "stream", "kafka"])
def site(request: pytest.FixtureRequest) -> Site:
    if request.param == "kafka":
        kafka: KafkaServer = request.getfixturevalue("own_kafka")
        return Site(kafka, kafka.url, "log")
    node: RabbitMqNode = request.getfixturevalue("node")
    return Site(node, node.amqp_url, "queue") if request.param == "queue" else Site(node, node.stream_url, "log")


class Program:
    """Publishes numbered messages from several tasks until stopped, and watches the bounds."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._stop = asyncio.Event()
        self.accepted: list[str] = []
        self.most_buffered = self.most_bytes = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._work(number) for number in range(2 * BUFFER)), self._watch())

    def stop(self) -> None:
        self._stop.set()

    async def _work(self, worker: int) -> None:
        number = 0
        while not self._stop.is_set():
            handle = await self._publisher.publish(BODY, id=f"{worker}-{number}")
            assert handle.accepted
            self.accepted.append(handle.id)
            number += 1
            await asyncio.sleep(0.01)

    async def _watch(self) -> None:
        while not self._stop.is_set():
            self.most_buffered = max(self.most_buffered, self._publisher.stats.buffered)
            self.most_bytes = max(self.most_bytes, self._publisher._relay._outbox.pending()[1])
            await asyncio.sleep(0.01)


async def arrived(url: str, queue: str, expected: set[str]) -> list[str]:
    """Ids in the order of arrival, repeats included, until all that is expected came."""
    found: list[str] = []
    async with await connect(f"{url}?dedup_ids=0") as broker:
        receiver = await broker.receiver(queue, window=5000)
        while not expected <= set(found):
            got = await receiver.receive(1000)
            found += [delivery.message.id for delivery in got]
            await receiver.ack(*got)
        await receiver.close()
        await broker.delete(queue)
    return found


async def stored(url: str, log: str) -> list[str]:
    """Ids in the order of a log, repeats included."""
    async with await connect(url) as broker:
        first, end = await broker.bounds(log, 0)
        found = [record.message.id async for chunk in broker.read(log, 0, first, end) for record in chunk]
        await broker.delete(log)
    return found


async def published_through(
    site: Site,
    outbox: Path,
    channel: str,
    begin: Callable[[], object],
    end: Callable[[], object],
    *,
    via: str = "",
    fails: bool = False,
) -> None:
    """Publish before, during and after the fault; during it the bounds are reached and hold. `fails`: it lasts
    until what was on its way has failed."""
    async with Publisher(
        via or site.url,
        channel=channel,
        outbox=OutboxConfig(outbox, MAX_BYTES),
        declare=site.kind,
        buffer=BUFFER,
        close_timeout_s=600.0,
    ) as publisher:
        program = Program(publisher)
        running = asyncio.create_task(program.run())
        while publisher.stats.confirmed < 200:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(begin)
        try:
            while program.most_bytes < 0.9 * MAX_BYTES or program.most_buffered < BUFFER:
                await asyncio.sleep(0.01)
            while fails and not publisher.problems:
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.5)
            assert not running.done()
        finally:
            await asyncio.to_thread(end)
        before = publisher.stats.confirmed
        while publisher.stats.confirmed < before + 300:
            await asyncio.sleep(0.01)
        program.stop()
        await running
        await publisher.drain()
        stats = publisher.stats
    assert program.most_buffered <= BUFFER
    assert program.most_bytes <= MAX_BYTES
    assert stats.dropped == stats.refused == stats.rejected == stats.waiting == 0
    assert stats.accepted == len(program.accepted) == stats.confirmed
    accepted = set(program.accepted)
    found = await arrived(site.url, channel, accepted) if site.kind == "queue" else await stored(site.url, channel)
    assert set(found) == accepted


def test_a_frozen_broker_that_comes_back(site: Site, tmp_path: Path) -> None:
    server = site.server
    asyncio.run(published_through(site, tmp_path / "o.db", "frozen", server.pause, server.resume, fails=True))


def test_a_killed_broker_that_is_started_again(site: Site, tmp_path: Path) -> None:
    server = site.server
    asyncio.run(published_through(site, tmp_path / "o.db", "killed", server.kill, server.start))


def test_a_broker_with_a_memory_alarm(node: RabbitMqNode, tmp_path: Path) -> None:
    asyncio.run(
        published_through(
            Site(node, node.amqp_url, "queue"),
            tmp_path / "o.db",
            "alarm",
            lambda: node.set_memory_alarm(True),
            lambda: node.set_memory_alarm(False),
        )
    )


def test_a_network_that_stalls(node: RabbitMqNode, tmp_path: Path) -> None:
    with FaultProxy(node.ports.amqp) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        site = Site(node, node.amqp_url, "queue")
        asyncio.run(published_through(site, tmp_path / "o.db", "stalled", proxy.stall, proxy.flow, via=url))


def test_a_killed_broker_and_the_order_of_an_ordered_publisher(node: RabbitMqNode, tmp_path: Path) -> None:
    async def main() -> None:
        async with Publisher(
            node.amqp_url,
            channel="ordered",
            outbox=tmp_path / "o.db",
            declare="queue",
            ordering=OrderingConfig(),
            close_timeout_s=600.0,
        ) as publisher:
            ids: list[str] = []
            kills = 0
            while kills < 2 or len(ids) < 3000:
                handle = await publisher.publish(b"", id=f"{len(ids)}")
                ids.append(handle.id)
                if kills < 2 and publisher.stats.confirmed > 1000 * (kills + 1):
                    kills += 1
                    await asyncio.to_thread(node.kill)
                    await asyncio.to_thread(node.start)
            await publisher.drain()
        found = await arrived(node.amqp_url, "ordered", set(ids))
        assert list(dict.fromkeys(found)) == ids

    asyncio.run(main())
