"""Whatever happens to a cluster under load, and to its manager meanwhile: no confirmed message is lost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyball import connect
from flyball.cluster.broker import ClusterBroker
from flyball.cluster.policy.state import Mark, Status
from flyball.cluster.records import ClusterRecord
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode
from tests.cluster.live import LiveCluster, ManagerProcess, in_event_loop
from tests.cluster.traffic import Traffic

GUARD_S = 400.0
TIMES: dict[str, Any] = {"lost_after_s": 4.0, "session_timeout_s": 12.0}


@pytest.fixture(params=["embedded", "rabbitmq"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Two nodes, a and b."""
    if request.param == "embedded":
        return {name: f"sqlite:///{tmp_path}/{name}.db" for name in "ab"}
    both = (request.getfixturevalue("rabbitmq"), request.getfixturevalue("own_rabbitmq"))
    return {name: node.amqp_url for name, node in zip("ab", both, strict=True)}


async def open_clients(cluster: LiveCluster) -> ClusterBroker:
    broker = await connect(f"{cluster.url}&manage=no")
    assert isinstance(broker, ClusterBroker)
    return broker


def has_clients(record: ClusterRecord, *names: str) -> bool:
    """Whether both producers and both consumers are at these nodes, and none on the way."""
    state = record.state
    found = {*state.producers, *state.consumers}
    return len(state.sessions) == 4 and found == set(names) and not state.moving


@pytest.mark.parametrize("action", ["grow", "shrink", "drain"])
@in_event_loop
async def test_the_manager_is_killed_while_the_cluster_changes(
    urls: dict[str, str], tmp_path: Path, action: str
) -> None:
    options: dict[str, Any] = {"hosts": {"b": {"url": urls["b"]}}} if action == "grow" else {"min_nodes": 1}
    members = {"a": urls["a"]} if action == "grow" else urls
    queue = f"orders.{uuid.uuid4().hex}"
    cluster = LiveCluster(tmp_path, members, queue=queue, shrink_after_s=600.0, **TIMES, **options)
    traffic = Traffic()
    async with asyncio.timeout(GUARD_S), await open_clients(cluster) as clients:
        async with ManagerProcess(cluster.url) as manager:
            senders = [await clients.connect("producer") for _ in range(2)]
            receivers = [await clients.connect("consumer", window=20) for _ in range(2)]
            await cluster.wait_for(lambda record: has_clients(record, *members))
            traffic.start(senders, receivers)
            await traffic.wait_for_more(100)
            if action == "drain":
                cluster.drain("b")
                await cluster.wait_for(lambda record: record.state.nodes["b"].mark is Mark.MAINTENANCE)
            else:
                subject = "b" if action == "shrink" else ""
                assert (
                    await cluster.wait_for_answer("grow" if action == "grow" else "shrink", subject)
                ).is_granted
            await manager.kill()
        await traffic.wait_for_more(100)  # nobody needs it
        async with ManagerProcess(cluster.url):
            if action == "grow":
                await cluster.wait_for(lambda record: has_clients(record, "a", "b"))
            elif action == "shrink":
                await cluster.wait_for(
                    lambda record: has_clients(record, "a") and set(record.state.nodes) == {"a"}
                )
            else:
                await cluster.wait_for(lambda record: has_clients(record, "a"))
                await cluster.wait_for(lambda record: record.state.nodes["b"].length == 0)
            await traffic.wait_for_more(100)
            await traffic.stop()


class Fault:
    """What happens to the node b, and how it ends."""

    def __init__(self, node: RabbitMqNode, proxy: FaultProxy) -> None:
        self.node, self.proxy = node, proxy

    def begin(self, name: str) -> None:
        match name:
            case "kill":
                self.node.kill()
            case "freeze":
                self.node.pause()
            case "partition":
                self.proxy.stall()

    def end(self) -> None:
        self.node.resume()
        self.node.start()
        self.proxy.flow()


@pytest.fixture
def fault(own_rabbitmq: RabbitMqNode) -> Iterator[Fault]:
    with FaultProxy(own_rabbitmq.ports.amqp) as proxy:
        fault = Fault(own_rabbitmq, proxy)
        yield fault
        fault.end()


@pytest.mark.parametrize("name", ["kill", "freeze", "partition"])
@in_event_loop
async def test_the_manager_is_killed_while_a_node_is_lost_and_while_it_returns(
    rabbitmq: RabbitMqNode, fault: Fault, tmp_path: Path, name: str
) -> None:
    urls = {"a": rabbitmq.amqp_url, "b": f"amqp://guest:guest@127.0.0.1:{fault.proxy.port}/"}
    cluster = LiveCluster(tmp_path, urls, queue=f"orders.{uuid.uuid4().hex}", **TIMES)
    traffic = Traffic()
    async with asyncio.timeout(GUARD_S), await open_clients(cluster) as clients:
        async with ManagerProcess(cluster.url) as manager:
            senders = [await clients.connect("producer") for _ in range(2)]
            receivers = [await clients.connect("consumer", window=20) for _ in range(2)]
            await cluster.wait_for(lambda record: has_clients(record, "a", "b"))
            traffic.start(senders, receivers)
            await traffic.wait_for_more(100)
            await asyncio.to_thread(fault.begin, name)
            await cluster.wait_for(lambda record: record.state.nodes["b"].status is Status.LOST)
            await manager.kill()
        async with ManagerProcess(cluster.url) as manager:
            await cluster.wait_for(lambda record: has_clients(record, "a"))
            await traffic.wait_for_more(100)
            await asyncio.to_thread(fault.end)
            await cluster.wait_for(lambda record: record.state.nodes["b"].status is Status.UP)
            await manager.kill()
        async with ManagerProcess(cluster.url):
            await cluster.wait_for(
                lambda record: record.state.nodes["b"].is_member and has_clients(record, "a", "b")
            )
            await traffic.wait_for_more(100)
            await traffic.stop()
