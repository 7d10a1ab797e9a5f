"""A cluster that starts, repairs, replaces and stops RabbitMQ nodes: no confirmed message is lost."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

from flyball import Message, connect
from flyball.brokers.port import Receiver, Sender
from flyball.cluster.broker import ClusterBroker
from flyball.cluster.config import ClusterNode, ProcessNodes
from flyball.cluster.policy.state import Status
from flyball.cluster.provisioners.process import ProcessProvisioner
from flyball.processes.process import OwnProcess
from flyball.servers.rabbitmq import RabbitMqNode
from tests.cluster.live import LiveCluster, ManagerProcess, in_event_loop

GUARD_S = 400.0
COUNT = 200


class Checker:
    """Sends batches as a publisher does, and knows what was confirmed and what was received."""

    def __init__(self) -> None:
        self.confirmed: set[str] = set()
        self.received: set[str] = set()

    async def send(self, sender: Sender, name: str) -> None:
        ids = [f"{name}-{number}" for number in range(COUNT)]
        while ids:
            results = await sender.send_batch([Message(b"x", id) for id in ids])
            self.confirmed |= {result.id for result in results if result.ok}
            ids = [result.id for result in results if not result.ok]
            await asyncio.sleep(0.1 if ids else 0.0)

    async def receive(self, receiver: Receiver) -> None:
        while not self.confirmed <= self.received:
            deliveries = await receiver.receive(timeout_s=0.2)
            self.received |= {delivery.message.id for delivery in deliveries}
            await receiver.ack(*deliveries)


@in_event_loop
async def test_nodes_on_this_host_are_started_replaced_revived_and_stopped(
    rabbitmq: RabbitMqNode, tmp_path: Path
) -> None:
    nodes = ProcessNodes(folder=str(tmp_path / "nodes"), capacity=2)
    cluster = LiveCluster(
        tmp_path,
        {"first": rabbitmq.amqp_url},
        queue=f"orders.{uuid.uuid4().hex}",
        lost_after_s=4.0,
        session_timeout_s=15.0,
        capacity=2,
        provisioner=nodes.model_dump(),
        max_nodes=2,
        shrink_after_s=600.0,
    )
    provisioner, checker = ProcessProvisioner(nodes), Checker()

    def find_server(name: str) -> OwnProcess | None:
        return OwnProcess.find(json.loads((tmp_path / "nodes" / name / "node.json").read_text())["server"])

    members = ("first", "node-2")

    try:
        async with asyncio.timeout(GUARD_S), await connect(f"{cluster.url}&manage=no") as clients:
            assert isinstance(clients, ClusterBroker)
            async with ManagerProcess(cluster.url) as manager:
                senders = [await clients.connect("producer") for _ in range(3)]
                await cluster.wait_for(lambda record: "node-1" in record.state.nodes)
                log = tmp_path / "nodes/node-1/server.log"
                while not log.exists() or not log.stat().st_size:
                    await asyncio.sleep(0.02)
                await manager.kill()  # in the middle of the start
            async with ManagerProcess(cluster.url):
                both = {"first": 2, "node-1": 1}
                await cluster.wait_for(lambda record: record.state.producers == both and not record.state.moving)
                for number, sender in enumerate(senders):
                    await checker.send(sender, f"before-{number}")
                server = find_server("node-1")
                assert server is not None
                await asyncio.to_thread(server.kill)
                await cluster.wait_for(lambda record: any(one.action == "lose node-1" for one in record.history))
                for number, sender in enumerate(senders):
                    await checker.send(sender, f"after-{number}")
                # Another one replaces it; it is started again with its data, which are moved, and stopped.
                record = await cluster.wait_for(
                    lambda record: (
                        {node.name for node in record.state.members} == set(record.state.nodes) == set(members)
                        and not record.removing
                    )
                )
                assert any("node-2 replaces it" in entry.reason for entry in record.history)
                assert any(one.code == "node_back" and "messages move" in one.reason for one in record.history)
                assert find_server("node-1") is None
                await senders.pop().close()
                await cluster.wait_for(lambda record: len(record.state.sessions) == 2 and not record.state.moving)
                assert (await cluster.wait_for_answer("shrink", "node-2")).is_granted
                await cluster.wait_for(lambda record: not record.urls and not record.removing)
                assert find_server("node-2") is None
                assert {sender.node for sender in senders} == {"first"}
                await senders.pop().close()
                await checker.receive(await clients.connect("consumer"))
        assert len(checker.confirmed) == 6 * COUNT
    finally:
        for name in ("node-1", "node-2"):
            await provisioner.remove(name)


@in_event_loop
async def test_a_lost_node_is_replaced_and_not_needed_when_it_returns(
    rabbitmq: RabbitMqNode, own_rabbitmq: RabbitMqNode, tmp_path: Path
) -> None:
    spare = {"spare": ClusterNode(url=f"sqlite:///{tmp_path}/spare.db")}
    nodes = {"safe": rabbitmq.amqp_url, "victim": own_rabbitmq.amqp_url}
    cluster = LiveCluster(
        tmp_path,
        nodes,
        queue=f"orders.{uuid.uuid4().hex}",
        lost_after_s=4.0,
        session_timeout_s=15.0,
        hosts=spare,
        max_nodes=2,
    )
    checker = Checker()
    async with asyncio.timeout(GUARD_S), await connect(cluster.url) as broker:
        senders = [await broker.sender(cluster.queue) for _ in range(4)]
        await cluster.wait_for(lambda record: record.state.producers == {"safe": 2, "victim": 2})
        for number, sender in enumerate(senders):
            await checker.send(sender, f"before-{number}")
        await asyncio.to_thread(own_rabbitmq.kill)
        record = await cluster.wait_for(lambda record: record.state.producers == {"safe": 2, "spare": 2})
        assert record.state.nodes["victim"].status is Status.LOST
        assert any("spare replaces it" in entry.reason for entry in record.history)
        for number, sender in enumerate(senders):
            await checker.send(sender, f"after-{number}")
        await asyncio.to_thread(own_rabbitmq.start)
        record = await cluster.wait_for(lambda record: "victim" not in record.state.nodes)
        assert any(entry.action == "remove victim" for entry in record.history)  # a free host from now on
        receivers = [await broker.receiver(cluster.queue) for _ in range(2)]
        await asyncio.gather(*map(checker.receive, receivers))
    assert len(checker.confirmed) == 8 * COUNT
