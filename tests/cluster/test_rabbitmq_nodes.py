"""A cluster of two RabbitMQ nodes, one of which is killed or frozen and comes back: no message is lost."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from flyball import Consumer, Message, Publisher, connect
from flyball.brokers.port import Receiver, Sender
from flyball.cluster.policy.state import Status
from flyball.servers.rabbitmq import RabbitMqNode
from tests.cluster.live import LiveCluster, in_event_loop

GUARD_S = 280.0
COUNT = 300
"""Messages that each publisher sends before the node is killed, while it is away, and after it is back."""


@pytest.fixture
def cluster(rabbitmq: RabbitMqNode, own_rabbitmq: RabbitMqNode, tmp_path: Path) -> LiveCluster:
    nodes = {"safe": rabbitmq.amqp_url, "victim": own_rabbitmq.amqp_url}
    queue = f"orders.{uuid.uuid4().hex}"
    return LiveCluster(tmp_path, nodes, queue=queue, lost_after_s=4.0, session_timeout_s=15.0)


@in_event_loop
async def test_no_confirmed_message_is_lost_with_a_killed_node(
    cluster: LiveCluster, own_rabbitmq: RabbitMqNode, tmp_path: Path
) -> None:
    handled: Counter[str] = Counter()
    confirmed: set[str] = set()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.005)
        handled[message.id] += 1

    async def publish(publisher: Publisher, phase: str) -> None:
        """Publish one by one: the kill comes in the middle of it."""
        for number in range(COUNT):
            id = f"{phase}-{id_of[publisher]}-{number}"
            handle = await publisher.publish(id.encode(), id=id)
            waits.append(asyncio.create_task(confirm(handle.wait_confirmed(), id)))
            await asyncio.sleep(0.001)

    async def confirm(wait: object, id: str) -> None:
        await wait  # type: ignore[misc]
        confirmed.add(id)

    waits: list[asyncio.Task[None]] = []
    async with asyncio.timeout(GUARD_S), AsyncExitStack() as stack:
        publishers = [
            await stack.enter_async_context(
                Publisher(cluster.url, channel=cluster.queue, outbox=tmp_path / f"outbox{number}.db")
            )
            for number in range(2)
        ]
        id_of = {publisher: number for number, publisher in enumerate(publishers)}
        consumers = [Consumer(cluster.url, queue=cluster.queue, handler=handle, window=1) for _ in range(2)]
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        both = {"safe": 1, "victim": 1}
        await cluster.wait_for(lambda record: record.state.producers == record.state.consumers == both)

        before = [asyncio.create_task(publish(publisher, "before")) for publisher in publishers]
        while len(confirmed) < COUNT:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(own_rabbitmq.kill)
        await cluster.wait_for(lambda record: record.state.nodes["victim"].status is Status.LOST)
        await cluster.wait_for(lambda record: record.state.consumers["safe"] == 2 and not record.state.moving)
        await asyncio.gather(*before)
        for publisher in publishers:
            await publish(publisher, "away")
        await asyncio.gather(*waits)
        assert len(confirmed) == 4 * COUNT

        await asyncio.to_thread(own_rabbitmq.start)
        await cluster.wait_for(lambda record: record.state.nodes["victim"].is_member)
        await cluster.wait_for(lambda record: record.state.consumers == both)
        for publisher in publishers:
            await publish(publisher, "back")
        await asyncio.gather(*waits)
        assert len(confirmed) == 6 * COUNT
        while not confirmed <= set(handled):
            await asyncio.sleep(0.05)
    history = cluster.read().history
    assert any(entry.action == "lose victim" for entry in history)
    survivors = [entry for entry in history if entry.code == "node_back" and "messages move" in entry.reason]
    assert survivors, history  # what was on its disk came back with it


@in_event_loop
async def test_clients_of_a_frozen_node_go_on_at_another(cluster: LiveCluster, own_rabbitmq: RabbitMqNode) -> None:
    sent, received = {f"m{number}" for number in range(40)}, set[str]()

    async def send(sender: Sender, ids: list[str]) -> None:
        """As a publisher does: what was not confirmed is sent again, with the same id."""
        while ids:
            results = await sender.send_batch([Message(b"x", id) for id in ids])
            ids = [result.id for result in results if not result.ok]
            await asyncio.sleep(0.1 if ids else 0.0)

    async def receive(receiver: Receiver) -> None:
        while not sent <= received:
            deliveries = await receiver.receive(timeout_s=0.2)
            received.update(delivery.message.id for delivery in deliveries)
            await receiver.ack(*deliveries)

    async with asyncio.timeout(GUARD_S), await connect(cluster.url) as broker:
        senders = [await broker.sender(cluster.queue) for _ in range(2)]
        receivers = [await broker.receiver(cluster.queue) for _ in range(2)]
        both = {"safe": 1, "victim": 1}
        await cluster.wait_for(lambda record: record.state.producers == record.state.consumers == both)
        await asyncio.to_thread(own_rabbitmq.pause)
        try:
            ids = sorted(sent)
            async with asyncio.TaskGroup() as tasks:
                for number, sender in enumerate(senders):
                    tasks.create_task(send(sender, ids[number::2]))
                for receiver in receivers:
                    tasks.create_task(receive(receiver))
            record = cluster.read()
            assert record.state.producers["safe"] == 2
        finally:
            await asyncio.to_thread(own_rabbitmq.resume)
        await cluster.wait_for(lambda record: record.state.nodes["victim"].is_member)
