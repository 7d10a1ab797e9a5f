"""Many channels: connections are shared, given up while nothing is sent, and opened again when something is."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from flyball import OrderingConfig, Publisher
from flyball.brokers import connect
from flyball.brokers.connections import Connections
from flyball.brokers.port import BrokerError
from flyball.brokers.rabbitmq.broker import RabbitMqBroker
from flyball.brokers.rabbitmq_stream.broker import StreamBroker
from flyball.servers.rabbitmq import RabbitMqNode

GUARD_S = 120.0


def descriptors() -> list[str]:
    """What the open file descriptors of this process refer to."""
    links = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - they are no paths
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
        except OSError:
            continue  # the one that lists them
    return links


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_channels_of_a_sqlite_broker_share_its_threads_and_files(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}?durability=process"
    before = len(descriptors()), threading.active_count()

    async def main() -> None:
        async with Publisher(url, outbox=tmp_path / "o.db", declare="queue") as publisher:
            for number in range(60):
                await publisher.publish(b"x", channel=f"customer.{number}")
            await publisher.drain()
            assert publisher.stats.confirmed == 60
            # The outbox: a lock, two connections, two workers. The broker: two connections and threads; asyncio's.
            assert len(descriptors()) - before[0] < 30
            assert threading.active_count() - before[1] < 16

    asyncio.run(main())
    assert threading.active_count() <= before[1]


def test_channels_of_a_rabbitmq_broker_share_its_connections(amqp_url: str, tmp_path: Path) -> None:
    prefix = f"customer.{uuid.uuid4().hex}"

    def sockets() -> int:
        return sum(link.startswith("socket:") for link in descriptors())

    async def main() -> None:
        before = sockets()
        async with Publisher(amqp_url, outbox=tmp_path / "o.db", declare="queue") as publisher:
            for number in range(30):
                await publisher.publish(b"x", channel=f"{prefix}.{number}")
            await publisher.drain()
            assert publisher.stats.confirmed == 30
            assert sockets() - before <= 2
        await wait_until(lambda: sockets() <= before)
        async with await connect(amqp_url) as broker:
            for number in range(30):
                assert await broker.depth(f"{prefix}.{number}") == 1
                await broker.delete(f"{prefix}.{number}")

    asyncio.run(main())


def test_rabbitmq_forgets_closed_senders(amqp_url: str) -> None:
    async def main() -> None:
        broker = await connect(amqp_url)
        assert isinstance(broker, RabbitMqBroker)
        for _ in range(5):
            await (await broker.sender("nobody")).close()
        assert len(broker._senders) <= 1
        await broker.close()
        with pytest.raises(BrokerError):
            await broker.sender("nobody")
        assert (broker._sending.on_lost, broker._sending.on_tick) == ([], [])

    asyncio.run(main())


def test_streams_forget_closed_senders(rabbitmq: RabbitMqNode) -> None:
    async def main() -> None:
        async with await connect(rabbitmq.stream_url) as broker:
            assert isinstance(broker, StreamBroker)
            await broker.declare("forgotten", "log")
            for _ in range(5):
                await (await broker.sender("forgotten")).close()
            assert len(broker._senders) <= 1
            await broker.delete("forgotten")

    asyncio.run(main())


def broker_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'broker.db'}?durability=process"
    if kind == "stream":
        return str(request.getfixturevalue("rabbitmq").stream_url)
    return str(request.getfixturevalue(f"{kind}_url"))


@pytest.mark.parametrize("producer", [None, "shop"])
@pytest.mark.parametrize("kind", ["sqlite", "amqp", "stream", "kafka"])
def test_a_target_that_gets_nothing_is_given_up_and_opened_again_on_demand(
    kind: str,
    producer: str | None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flyball.publisher.target_sender.IDLE_S", 0.1)
    url, channel = broker_url(kind, request, tmp_path), f"orders.{uuid.uuid4().hex}"

    async def main() -> None:
        publisher = Publisher(
            url,
            channel=channel,
            outbox=tmp_path / "o.db",
            declare="queue" if kind == "amqp" else "log",
            ordering=OrderingConfig(producer) if producer is not None else None,
        )
        async with publisher:
            connections = publisher._relay._connections
            for attempt in range(3):
                handles = await asyncio.gather(*(publisher.publish(b"%d" % attempt) for _ in range(20)))
                await asyncio.gather(*(handle.wait_confirmed() for handle in handles))
                assert connections._connections
                await wait_until(lambda: not connections._connections)
        async with await connect(url) as broker:
            assert await broker.depth(channel) == 60
            await broker.delete(channel)

    asyncio.run(main())


def test_a_broker_is_opened_once_and_closed_after_its_last_use(tmp_path: Path) -> None:
    async def main() -> None:
        connections, url = Connections(), f"sqlite:///{tmp_path / 'broker.db'}"
        opened = await asyncio.gather(*(connections.acquire(url) for _ in range(5)))
        assert len(set(map(id, opened))) == 1
        for _ in range(4):
            await connections.close(opened[0])
        broker = opened[0].broker
        await broker.declare("orders")
        await connections.close(opened[0], await broker.sender("orders"))
        with pytest.raises(BrokerError):
            await broker.declare("orders")

        missing = f"sqlite:///{tmp_path / 'none' / 'broker.db'}"
        errors = await asyncio.gather(*(connections.acquire(missing) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(error, BrokerError) for error in errors)
        (tmp_path / "none").mkdir()
        found = await connections.acquire(missing)  # a failure is not remembered
        opening = asyncio.create_task(connections.acquire(f"{url}?durability=process"))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        await connections.close(found)
        assert not connections._connections
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_connection_has_no_more_users_than_a_broker_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball.brokers.connections._MAX_USERS", 3)

    async def main() -> None:
        connections, url = Connections(), f"sqlite:///{tmp_path / 'broker.db'}"
        opened = [await connections.acquire(url) for _ in range(7)]
        assert len(set(map(id, opened))) == 3
        for connection in opened:
            await connections.close(connection)
        assert not connections._connections

    asyncio.run(main())
