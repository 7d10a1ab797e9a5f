"""Nodes are real, separate, controllable, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pika
import pytest

from flyball.processes.process import OwnProcess
from flyball.servers import ServerFailed, ServerMissing, rabbitmq_packages
from flyball.servers import rabbitmq as module
from flyball.servers.ports import accepts
from flyball.servers.rabbitmq import RabbitMqNode, installed

needs_rabbitmq = pytest.mark.skipif(not installed(), reason="rabbitmq-server is not installed")


def _depth(node: RabbitMqNode, queue: str) -> int:
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
        return int(connection.channel().queue_declare(queue, durable=True).method.message_count)


@needs_rabbitmq
def test_two_nodes_are_independent_and_leave_nothing() -> None:
    with RabbitMqNode(plugins=()) as first, RabbitMqNode(plugins=()) as second:
        with pika.BlockingConnection(pika.URLParameters(first.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"x")
        assert (_depth(first, "q"), _depth(second, "q")) == (1, 0)
        pids = [*first.pids, *second.pids]
        folders = [first.folder, second.folder]
        assert len(set(pids)) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(folder is not None and folder.exists() for folder in folders)
    assert not accepts(first.ports.epmd)


@needs_rabbitmq
def test_confirmed_persistent_messages_survive_a_kill(tmp_path: Path) -> None:
    with RabbitMqNode(folder=tmp_path / "node", plugins=()) as node:
        with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        found = RabbitMqNode.from_record(node.record())
        assert found.pids == node.pids
        found.kill()  # from "another process": by the record alone
        assert not node.running
        with pytest.raises(ServerFailed, match="not running"):
            node.control("status")
        node.start()
        assert _depth(node, "q") == 1


def test_rabbitmq_4_beside_the_installed_one(rabbitmq_4: RabbitMqNode) -> None:
    assert rabbitmq_4.control("version").startswith("4.")
    found = RabbitMqNode.from_record(rabbitmq_4.record())
    assert (found.version, found.pids) == (4, rabbitmq_4.pids)
    assert found.control("version") == rabbitmq_4.control("version")


@needs_rabbitmq
def test_a_node_that_cannot_start_shows_its_log() -> None:
    with (
        pytest.raises(ServerFailed, match="no_such_setting"),
        RabbitMqNode(plugins=(), config={"no_such_setting": "1"}),
    ):
        pass


def test_a_missing_server_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_SCRIPTS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissing, match="apt-get install rabbitmq-server"):
        RabbitMqNode().start()


def test_a_system_that_refuses_namespaces_is_told_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq_packages, "installed_version", lambda: "3.10.8")
    monkeypatch.setattr(rabbitmq_packages, "_IN_NAMESPACE", "echo not permitted >&2; exit 1")
    with pytest.raises(ServerMissing, match="mount namespace of its own, which is refused here: "):
        RabbitMqNode(version=4).start()


def test_no_source_for_packages_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rabbitmq_packages, "installed_version", lambda: "3.10.8")
    monkeypatch.setattr(rabbitmq_packages, "_check_namespace", lambda _: None)
    monkeypatch.setattr(rabbitmq_packages, "_mirror", lambda: f"file:{tmp_path}/absent")
    monkeypatch.setenv("FLYBALL_CACHE", str(tmp_path))
    with pytest.raises(ServerMissing, match="apt-get could not fetch RabbitMQ"):
        RabbitMqNode(version=4).start()
    assert rabbitmq_packages.fetched_version(4) is None
    assert [path.name for path in (tmp_path / "rabbitmq").iterdir()] == ["4.lock"]


def test_a_pid_that_now_belongs_to_another_process_is_not_ours() -> None:
    assert OwnProcess.find({"pid": os.getpid(), "started": "1"}) is None
