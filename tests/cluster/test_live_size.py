"""A running cluster grows and shrinks: over hosts, and over nodes that a command adds and removes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from flyball import ClusterConfig, ClusterNode, Message, connect
from flyball.brokers.port import Receiver
from flyball.cluster.broker import ClusterBroker
from flyball.cluster.config import CommandNodes
from flyball.cluster.policy.state import Status
from flyball.cluster.provisioners import ProvisioningFailed
from flyball.cluster.provisioners.command import CommandProvisioner
from flyball.cluster.records import ClusterRecord
from flyball.errors import InvalidValue
from tests.cluster import scripted_nodes
from tests.cluster.live import GUARD_S, LiveCluster, ManagerProcess, in_event_loop


def make_cluster(folder: Path, **options: Any) -> LiveCluster:
    """One node "a" that serves two clients."""
    nodes = {"a": f"sqlite:///{folder}/a.db"}
    return LiveCluster(folder, nodes, capacity=2, **{"shrink_after_s": 600.0, **options})


def make_scripted(folder: Path, **options: Any) -> LiveCluster:
    script = (sys.executable, scripted_nodes.__file__, str(folder))
    command = {"kind": "command", "add": [*script, "add", "{node}"], "remove": [*script, "remove", "{node}"]}
    return make_cluster(folder, provisioner={**command, "capacity": 2}, max_nodes=2, **options)


def list_calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


async def open_broker(url: str) -> ClusterBroker:
    broker = await connect(url)
    assert isinstance(broker, ClusterBroker)
    return broker


async def receive_all(wanted: set[str], *receivers: Receiver) -> None:
    missing = set(wanted)

    async def receive(receiver: Receiver) -> None:
        while missing:
            deliveries = await receiver.receive(timeout_s=0.2)
            missing.difference_update(delivery.message.id for delivery in deliveries)
            await receiver.ack(*deliveries)

    async with asyncio.timeout(GUARD_S):
        await asyncio.gather(*map(receive, receivers))


def serves(record: ClusterRecord, *names: str) -> bool:
    return {node.name for node in record.state.members} == set(names)


@in_event_loop
async def test_a_free_host_is_used_when_clients_come_and_emptied_when_they_leave(tmp_path: Path) -> None:
    hosts = {"b": ClusterNode(url=f"sqlite:///{tmp_path}/b.db", capacity=2)}
    cluster = make_cluster(tmp_path, hosts=hosts)
    async with await open_broker(cluster.url) as broker:
        await cluster.wait_for(lambda record: "b" in record.state.hosts or record.asked_time_s > 0)
        senders = [await broker.connect("producer") for _ in range(3)]
        record = await cluster.wait_for(lambda record: serves(record, "a", "b"))
        assert any(
            entry.action == "add b" and "the load of the cluster is 1" in entry.reason for entry in record.history
        )
        await cluster.wait_for(lambda record: min(record.state.producers["a"], record.state.producers["b"]) >= 1)
        for number, sender in enumerate(senders):
            messages = [Message(b"x", f"m{number}-{each}") for each in range(50)]
            assert all(result.ok for result in await sender.send_batch(messages))
        assert {sender.node for sender in senders} == {"a", "b"}
        for sender in senders[1:]:
            await sender.close()
        cluster.configure(shrink_after_s=0.0)
        record = await cluster.wait_for(lambda record: len(record.state.nodes) == 1)
        assert record.history[-1].code == "empty"
        (left,) = record.state.nodes
        assert senders[0].node == left
        receiver = await broker.connect("consumer")
        await receive_all({f"m{number}-{each}" for number in range(3) for each in range(50)}, receiver)


@in_event_loop
async def test_an_operator_grows_and_shrinks_and_is_told_why_not(tmp_path: Path) -> None:
    hosts = {"b": ClusterNode(url=f"sqlite:///{tmp_path}/b.db", capacity=2)}
    cluster = make_cluster(tmp_path, hosts=hosts, shrink_after_s=0.0)
    async with await open_broker(cluster.url) as broker:
        await cluster.wait_for(lambda record: serves(record, "a"))
        refused = await cluster.wait_for_answer("shrink")
        assert (refused.is_granted, refused.text) == (
            False,
            "no node can be removed: 1 serve, and min_nodes is 1",
        )
        answer = await cluster.wait_for_answer("grow")
        assert (answer.is_granted, answer.text) == (
            True,
            "b is added (grow-1); shrinking needs approval for 600 s",
        )
        full = await cluster.wait_for_answer("grow")
        assert full.text == "no node can be added: there are 2 nodes, and max_nodes is 2"
        assert (await cluster.wait_for_answer("shrink", "c")).text == "c serves no clients now; a, b do"
        before = cluster.read().asked_time_s
        record = await cluster.wait_for(lambda record: record.asked_time_s > before + 1.0)
        assert serves(record, "a", "b")  # though it could shrink at once
        for _ in range(3):
            await broker.connect("producer")
        await cluster.wait_for(lambda record: len(record.state.sessions) == 3)
        crowded = await cluster.wait_for_answer("shrink", "a")
        assert crowded.text == "3 clients do not fit without a: the others have room for 2"
    async with await open_broker(cluster.url):
        await cluster.wait_for(lambda record: not record.state.sessions)
        answer = await cluster.wait_for_answer("shrink", "a")
        assert answer.text.startswith("a is emptied and removed (shrink-")
        await cluster.wait_for(lambda record: serves(record, "b") and len(record.state.nodes) == 1)
        cluster.configure(mode="advise")
        before = cluster.read().asked_time_s
        await cluster.wait_for(lambda record: record.asked_time_s > before + 1.0)
        assert (await cluster.wait_for_answer("grow")).text.startswith(
            "the mode is advise: nothing is carried out"
        )


@in_event_loop
async def test_a_manager_that_is_killed_while_a_node_is_added_or_removed_leaves_no_half_node(
    tmp_path: Path,
) -> None:
    cluster = make_scripted(tmp_path)
    (tmp_path / "wait-add").touch()
    async with await open_broker(f"{cluster.url}&manage=no") as clients:
        async with ManagerProcess(cluster.url) as manager:
            senders = [await clients.connect("producer") for _ in range(3)]
            record = await cluster.wait_for(lambda record: "node-1" in record.state.nodes)
            assert record.state.nodes["node-1"].status is Status.ADDING
            assert {sender.node for sender in senders} == {"a"}  # nobody waits for it
            async with asyncio.timeout(GUARD_S):
                while not list_calls(tmp_path):
                    await asyncio.sleep(0.02)
            await manager.kill()
        (tmp_path / "wait-add").unlink()
        async with ManagerProcess(cluster.url) as manager:
            record = await cluster.wait_for(lambda record: serves(record, "a", "node-1"))
            assert record.urls == {"node-1": f"sqlite:///{tmp_path}/node-1.db"}
            assert list_calls(tmp_path) == ["add node-1"] * 2
            await cluster.wait_for(lambda record: record.state.producers["node-1"] == 1)
            ids = {f"m{number}-{each}" for number in range(3) for each in range(50)}
            for number, sender in enumerate(senders):
                await sender.send_batch([Message(b"x", f"m{number}-{each}") for each in range(50)])
            await senders.pop().close()
            await cluster.wait_for(lambda record: len(record.state.sessions) == 2)
            (tmp_path / "wait-remove").touch()
            assert (await cluster.wait_for_answer("shrink", "node-1")).is_granted
            await manager.kill()  # while it is emptied
        async with ManagerProcess(cluster.url) as manager:
            record = await cluster.wait_for(lambda record: record.removing == {"node-1"})
            assert serves(record, "a")
            async with asyncio.timeout(GUARD_S):
                while "remove node-1" not in list_calls(tmp_path):
                    await asyncio.sleep(0.02)
            await manager.kill()  # while it is stopped
        (tmp_path / "wait-remove").unlink()
        async with ManagerProcess(cluster.url):
            record = await cluster.wait_for(lambda record: not record.removing)
            assert (record.urls, set(record.state.nodes)) == ({}, {"a"})
            assert list_calls(tmp_path).count("remove node-1") == 2
            assert {sender.node for sender in senders} == {"a"}
            await senders.pop().close()
            await cluster.wait_for(lambda record: len(record.state.sessions) == 1)
            receiver = await clients.connect("consumer")
            await receive_all(ids, receiver)


@in_event_loop
async def test_a_command_that_fails_is_reported_in_its_words_and_tried_again(tmp_path: Path) -> None:
    cluster = make_scripted(tmp_path)
    (tmp_path / "wrong").write_text("fail")
    async with await open_broker(cluster.url) as broker:
        for _ in range(3):
            await broker.connect("producer")
        record = await cluster.wait_for(lambda record: any("failed" in one.action for one in record.history))
        (failure,) = [entry for entry in record.history if entry.action == "add node-1 failed"]
        assert failure.reason.endswith("ended with exit code 3; it said: no machine is left for it")
        assert serves(record, "a")
        assert record.state.producers["a"] == 3  # they are served, if not well
        (tmp_path / "wrong").unlink()
        await cluster.wait_for(lambda record: serves(record, "a", "node-1"))
        await cluster.wait_for(lambda record: record.state.producers["node-1"] >= 1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("fail", "ended with exit code 3; it said: no machine is left for it"),
        ("hang", "did not end in 1 s; it said: nothing"),
        ("print", r"must print the URL of the node \(.*\) as its last line, got 'all went well'"),
    ],
)
def test_a_command_is_checked(tmp_path: Path, wrong: str, words: str) -> None:
    script = (sys.executable, scripted_nodes.__file__, str(tmp_path))
    nodes = CommandNodes(add=(*script, "add", "{cluster}-{node}"), remove=("no-such-program",), timeout_s=1.0)
    (tmp_path / "wrong").write_text(wrong)
    with pytest.raises(ProvisioningFailed, match=words):
        asyncio.run(CommandProvisioner(nodes, "shop").add("node-1"))
    assert list_calls(tmp_path) == ["add shop-node-1"]
    with pytest.raises(ProvisioningFailed, match="'no-such-program' cannot be run for node-1: No such file"):
        asyncio.run(CommandProvisioner(nodes, "shop").remove("node-1"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_nodes": 3}, "max_nodes must be <= 2, the number of nodes and hosts, got 3"),
        ({"max_nodes": 1, "min_nodes": 2}, "max_nodes must be >= min_nodes and the number of nodes"),
        ({"max_nodes": 5}, "max_nodes must be <= 2"),
        ({"provisioner": {"kind": "process", "folder": "/data"}}, "max_nodes must be given with a provisioner"),
        ({"provisioner": {"kind": "process", "folder": "data"}, "max_nodes": 3}, "must be an absolute path"),
        ({"provisioner": {"kind": "magic"}, "max_nodes": 3}, "provisioner"),
        ({"provisioner": {"kind": "command", "add": ["x"], "remove": []}, "max_nodes": 3}, "remove"),
        ({"hosts": {"a": {"url": "sqlite:///c.db"}}}, "nodes and hosts must have different names, got 'a' twice"),
        ({"hosts": {"c": {"url": "sqlite:///a.db"}}}, "nodes must have different URLs"),
        ({"auto": ["groww"]}, "auto"),
        ({"mode": "off"}, "mode"),
    ],
)
def test_mistakes_in_the_size(options: dict[str, Any], words: str) -> None:
    config: dict[str, Any] = {
        "name": "shop",
        "nodes": {"a": {"url": "sqlite:///a.db"}},
        "hosts": {"b": {"url": "sqlite:///b.db"}},
    }
    with pytest.raises(InvalidValue, match=words):
        ClusterConfig(**{**config, **options})
