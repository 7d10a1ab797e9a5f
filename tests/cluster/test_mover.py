"""Messages that move between real nodes: none is lost, and a slow node slows no other pair."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from flyball import Message, connect
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import Broker
from flyball.cluster.mover import Mover
from flyball.cluster.node_connections import NodeConnections
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode
from tests.cluster.live import GUARD_S, in_event_loop


async def fill(broker: Broker, queue: str, count: int, body: bytes = b"x") -> None:
    await broker.declare(queue)
    sender = await broker.sender(queue)
    results = await sender.send_batch([Message(body, f"m{number}", key=b"k") for number in range(count)])
    assert all(result.ok for result in results)


async def read_all(broker: Broker, queue: str) -> list[str]:
    receiver, ids = await broker.receiver(queue, window=500), []
    while deliveries := await receiver.receive(500, timeout_s=1.0):
        ids += [delivery.message.id for delivery in deliveries]
        await receiver.ack(*deliveries)
    return ids


@in_event_loop
async def test_messages_move_there_and_back_in_order(tmp_path: Path) -> None:
    (a, b), channel = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab"), ChannelSpec("orders")
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(await connect(url)) for url in (a, b)]
        await fill(brokers[0], "orders", 300)
        nodes = NodeConnections(timeout_s=GUARD_S)
        stack.push_async_callback(nodes.close)
        mover = Mover(nodes)
        async with asyncio.timeout(GUARD_S):
            assert await mover.move(("a", "b"), a, b, channel, 200) == 200
            assert await brokers[0].depth("orders") == 100
            assert await mover.move(("b", "a"), b, a, channel, 1000) == 200
            # What came back is moved again: nothing takes it for a repeat.
            assert await mover.move(("a", "b"), a, b, channel, 300) == 300
            ids = await read_all(brokers[1], "orders")
    assert ids == [f"m{number}" for number in (*range(200, 300), *range(200))]


@in_event_loop
async def test_a_slow_node_slows_no_other_pair(rabbitmq: RabbitMqNode) -> None:
    """Three virtual hosts are the nodes; the third is behind a slow link."""
    queue, hosts = f"orders.{uuid.uuid4().hex}", [f"node-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    for host in hosts:
        await asyncio.to_thread(rabbitmq.control, "add_vhost", host)
        await asyncio.to_thread(rabbitmq.control, "set_permissions", "-p", host, "guest", ".*", ".*", ".*")
    count, body, channel = 3000, bytes(1024), ChannelSpec(queue)
    try:
        with FaultProxy(rabbitmq.ports.amqp, bytes_per_s=100_000.0) as proxy:
            source, quick = (f"{rabbitmq.amqp_url}{host}" for host in hosts[:2])
            slow = f"amqp://guest:guest@127.0.0.1:{proxy.port}/{hosts[2]}"
            async with AsyncExitStack() as stack:
                brokers = [
                    await stack.enter_async_context(await connect(f"{rabbitmq.amqp_url}{host}")) for host in hosts
                ]
                await fill(brokers[0], queue, 2 * count, body)
                nodes = NodeConnections(timeout_s=GUARD_S)
                stack.push_async_callback(nodes.close)
                mover = Mover(nodes)
                async with asyncio.timeout(GUARD_S):
                    slowly = asyncio.create_task(mover.move(("a", "c"), source, slow, channel, count))
                    moved = 0
                    while moved < count:
                        moved += await mover.move(("a", "b"), source, quick, channel, count - moved)
                    meanwhile = await brokers[2].depth(queue)
                    rates = [mover.rate_per_s(("a", name)) for name in "bc"]
                    moved_slowly = await slowly
                assert rates[0] is not None
                assert rates[1] is not None
                assert rates[0] > 4 * rates[1]
                assert meanwhile < count // 2
                found = [await read_all(broker, queue) for broker in brokers]
        assert len(found[1]) == count
        assert len(found[2]) == moved_slowly
        assert sorted(id for ids in found for id in ids) == sorted(f"m{number}" for number in range(2 * count))
    finally:
        for host in hosts:
            await asyncio.to_thread(rabbitmq.control, "delete_vhost", host)
