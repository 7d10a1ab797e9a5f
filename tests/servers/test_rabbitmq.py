"""Nodes are real, separate, controllable, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pika
import pytest

from flyball.processes.process import OwnProcess
from flyball.servers import ServerFailed, ServerMissing
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


def test_a_pid_that_now_belongs_to_another_process_is_not_ours() -> None:
    assert OwnProcess.find({"pid": os.getpid(), "started": "1"}) is None
