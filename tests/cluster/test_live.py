"""Clients, manager and messages of a cluster on embedded nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from flyball import ClusterConfig, ClusterNode, Consumer, Message, Publisher, connect, create_cluster
from flyball.brokers.port import NoSuchChannel, Receiver, Unsupported
from flyball.cluster.broker import ClusterBroker
from flyball.cluster.policy.state import Mark
from flyball.errors import InvalidValue
from tests.cluster.live import GUARD_S, QUEUE, LiveCluster, in_event_loop


@pytest.fixture
def cluster(tmp_path: Path) -> LiveCluster:
    return LiveCluster(tmp_path)


async def open_broker(url: str) -> ClusterBroker:
    broker = await connect(url)
    assert isinstance(broker, ClusterBroker)
    return broker


def make_messages(numbers: Iterable[int]) -> list[Message]:
    return [Message(b"%d" % number, f"m{number}") for number in numbers]


def ids_of(numbers: Iterable[int]) -> set[str]:
    return {f"m{number}" for number in numbers}


async def receive_all(wanted: set[str], *receivers: Receiver) -> None:
    """Receive and acknowledge until every wanted message was received."""
    missing = set(wanted)

    async def receive(receiver: Receiver) -> None:
        while missing:
            deliveries = await receiver.receive(timeout_s=0.2)
            missing.difference_update(delivery.message.id for delivery in deliveries)
            await receiver.ack(*deliveries)

    async with asyncio.timeout(GUARD_S):
        await asyncio.gather(*map(receive, receivers))


@in_event_loop
async def test_clients_are_shared_among_nodes_and_every_message_is_received(cluster: LiveCluster) -> None:
    async with await open_broker(cluster.url) as broker:
        senders = [await broker.connect("producer") for _ in range(4)]
        assert sorted(sender.node or "" for sender in senders) == ["a", "a", "b", "b"]
        receivers = [await broker.connect("consumer") for _ in range(2)]
        assert sorted(receiver.node or "" for receiver in receivers) == ["a", "b"]
        for number, sender in enumerate(senders):
            results = await sender.send_batch(make_messages(range(10 * number, 10 * number + 10)))
            assert all(result.ok for result in results)
        await receive_all(ids_of(range(40)), *receivers)


@in_event_loop
async def test_one_consumer_gets_what_is_at_nodes_without_consumers(cluster: LiveCluster) -> None:
    async with await open_broker(cluster.url) as broker:
        assert await broker.depth(QUEUE) == 0
        for numbers in (range(50), range(50, 100)):
            sender = await broker.connect("producer")
            assert all(result.ok for result in await sender.send_batch(make_messages(numbers)))
        receiver = await broker.connect("consumer")
        await receive_all(ids_of(range(100)), receiver)
    record = cluster.read()
    assert any(entry.code == "starving" for entry in record.history)


@in_event_loop
async def test_the_depth_is_known_without_a_manager(cluster: LiveCluster) -> None:
    async with await open_broker(cluster.url) as broker:
        for numbers in (range(50), range(50, 100)):
            sender = await broker.connect("producer")
            assert all(result.ok for result in await sender.send_batch(make_messages(numbers)))
    await asyncio.sleep(1.0)  # the manager's last figures, of before, are old then
    async with await open_broker(f"{cluster.url}&manage=no") as broker:
        assert await broker.depth(QUEUE) == 100


@in_event_loop
async def test_a_client_that_leaves_or_dies_is_noticed(cluster: LiveCluster) -> None:
    async with await open_broker(cluster.url) as broker:
        sender = await broker.connect("producer")
        await broker.connect("producer")
        await sender.close()
        record = await cluster.wait_for(lambda record: len(record.state.sessions) == 1)
        (session,) = record.state.sessions.values()
        program = (
            "import asyncio, sys\n"
            "from flyball import connect\n"
            "async def main():\n"
            "    broker = await connect(sys.argv[1])\n"
            "    await broker.receiver('orders')\n"
            "    await asyncio.sleep(600)\n"
            "asyncio.run(main())\n"
        )
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cluster.url)
        try:
            await cluster.wait_for(lambda record: len(record.state.sessions) == 2)
            child.kill()
            record = await cluster.wait_for(lambda record: len(record.state.sessions) == 1)
            assert set(record.state.sessions) == {session.id}
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


@in_event_loop
async def test_a_drained_node_gives_away_its_clients_and_messages(cluster: LiveCluster) -> None:
    async with await open_broker(cluster.url) as broker:
        senders = [await broker.connect("producer") for _ in range(2)]
        for number, sender in enumerate(senders):
            await sender.send_batch(make_messages(range(100 * number, 100 * number + 100)))
        receivers = [await broker.connect("consumer", window=5) for _ in range(2)]
        held = [
            await receiver.receive(5, timeout_s=GUARD_S) for receiver in receivers
        ]  # in flight while they move
        cluster.drain("b")
        record = await cluster.wait_for(lambda record: record.state.nodes["b"].mark is Mark.MAINTENANCE)
        for receiver, deliveries in zip(receivers, held, strict=True):
            await receiver.ack(*deliveries)
        record = await cluster.wait_for(
            lambda record: record.state.nodes["b"].length == 0 and not record.state.consumers["b"]
        )
        assert {each.node for each in senders} == {each.node for each in receivers} == {"a"}
        assert not record.state.producers["b"]
        handled = {delivery.message.id for deliveries in held for delivery in deliveries}
        for number, sender in enumerate(senders):
            await sender.send_batch(make_messages(range(1000 + 10 * number, 1000 + 10 * number + 10)))
        await receivers[1].close()
        await receive_all(ids_of((*range(200), *range(1000, 1020))) - handled, receivers[0])
        cluster.drain("b", wanted=False)
        await cluster.wait_for(lambda record: record.state.producers["b"] == 1)  # and balanced again


@in_event_loop
async def test_clients_go_on_without_a_manager_and_a_successor_takes_over(cluster: LiveCluster) -> None:
    program = (
        "import asyncio, sys\n"
        "from flyball import connect\n"
        "async def main():\n"
        "    broker = await connect(sys.argv[1])\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cluster.url)
    try:
        async with asyncio.timeout(GUARD_S):
            while (leader := await asyncio.to_thread(cluster.leader)) is None:
                await asyncio.sleep(0.05)
        async with await open_broker(f"{cluster.url}&manage=no") as clients:
            sender, receiver = await clients.connect("producer"), await clients.connect("consumer")
            before = (sender.node, receiver.node)
            os.kill(child.pid, signal.SIGKILL)
            await child.wait()
            for batch in range(5):
                results = await sender.send_batch(make_messages(range(10 * batch, 10 * batch + 10)))
                assert all(result.ok for result in results)
            await receive_all(ids_of(range(50)), receiver)
            async with await open_broker(cluster.url) as successor:
                async with asyncio.timeout(GUARD_S):
                    while not successor.leads:
                        await asyncio.sleep(0.05)
                await successor.connect("producer")
                record = await cluster.wait_for(lambda record: len(record.state.sessions) == 3)
                assert (sender.node, receiver.node) == before
                assert sorted(record.state.producers.values()) == [1, 1]
                assert await asyncio.to_thread(cluster.leader) not in (None, leader)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@in_event_loop
async def test_publisher_and_consumer_take_the_url_of_a_cluster(cluster: LiveCluster, tmp_path: Path) -> None:
    handled: list[str] = []

    async def handle(message: Message) -> None:
        if message.body == b"7":
            raise ValueError("a message that cannot be handled")
        handled.append(message.id)

    async with Consumer(cluster.url, queue=QUEUE, handler=handle, retries=0) as consumer:
        async with Publisher(cluster.url, channel=QUEUE, outbox=tmp_path / "outbox.db") as publisher:
            await publisher.publish_many(make_messages(range(300)))
            await publisher.drain()
        async with asyncio.timeout(GUARD_S):
            while len(handled) < 299 or consumer.stats.dead_lettered < 1:
                await asyncio.sleep(0.02)
    assert sorted(handled) == sorted(f"m{number}" for number in range(300) if number != 7)
    async with await connect(cluster.nodes["a"]) as node:
        assert await node.depth(f"{QUEUE}.dead") == 1


@in_event_loop
async def test_what_a_cluster_does_not_have(cluster: LiveCluster) -> None:
    async with await open_broker(cluster.url) as broker:
        with pytest.raises(Unsupported, match="no subscriptions"):
            await broker.subscribe(QUEUE, "group")
        with pytest.raises(Unsupported, match="no logs"):
            await broker.declare("events", "log")
        with pytest.raises(NoSuchChannel, match="no queue 'other'"):
            await broker.sender("other")
        await broker.declare("other")
        with pytest.raises(NoSuchChannel, match="read it at its nodes"):
            await broker.receiver("other")
        with pytest.raises(InvalidValue, match="role must be producer or consumer, got 'both'"):
            await broker.connect("both")  # type: ignore[call-overload]
        assert [channel.name for channel in await broker.channels()] == [QUEUE, "other"]


@in_event_loop
async def test_mistakes_in_the_url_and_in_the_configuration(cluster: LiveCluster, tmp_path: Path) -> None:
    for url, words in (
        ("cluster://shop", "must name a cluster and its store"),
        (f"cluster://?store={cluster.store}", "must name a cluster and its store"),
        (f"cluster://shop?store={cluster.store}&manage=perhaps", "must be yes or no, got 'perhaps'"),
        (f"cluster://shop?store={cluster.store}&size=3", "unknown option 'size'"),
        (f"cluster://ship?store={cluster.store}", "there is no cluster 'ship' in the store: it has shop"),
        (f"cluster://shop?store=sqlite:///{tmp_path}/none.db", "there is no file"),
    ):
        with pytest.raises(InvalidValue, match=words):
            await connect(url)
    node = ClusterNode(url="sqlite:///a.db")
    with pytest.raises(InvalidValue, match="there is a cluster 'shop' in this store already"):
        create_cluster(cluster.store, ClusterConfig(name="shop", nodes={"a": node}))
    with pytest.raises(ValueError, match="must be the URL of a broker with queues"):
        ClusterNode(url="kafka://localhost")
    with pytest.raises(InvalidValue, match="nodes must have different URLs"):
        ClusterConfig(name="shop", nodes={"a": node, "b": node})
    cluster.drain("a")
    with pytest.raises(InvalidValue, match="would have no other"):
        cluster.drain("b")
    with pytest.raises(InvalidValue, match="no node 'c' in cluster 'shop': it has a, b"):
        cluster.drain("c")
