"""flyball broker: servers outlive the command, are found again, and leave nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball.processes.process import start_time
from flyball.servers.kafka import KafkaServer
from flyball.servers.ports import accepts
from flyball.servers.rabbitmq import RabbitMqNode, installed


def _flyball(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "FLYBALL_STATE"}
    return subprocess.run(
        [sys.executable, "-m", "flyball", "broker", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _json(folder: Path, *arguments: str) -> dict[str, Any]:
    answer = _flyball(folder, *arguments, "--json")
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(answer.stdout))


@pytest.mark.skipif(not installed(), reason="rabbitmq-server is not installed: apt-get install rabbitmq-server")
def test_up_status_down(tmp_path: Path) -> None:
    try:
        (started,) = _json(tmp_path, "up", "rabbitmq")["servers"]
        assert started["running"]
        assert set(started["urls"]) == {"amqp", "stream", "management"}
        assert started["url"].startswith("amqp://guest:guest@127.0.0.1:")
        port = int(started["url"].split(":")[3].split("/")[0])
        assert accepts(port)
        assert _json(tmp_path, "status")["servers"] == [started]
    finally:
        stopped = _json(tmp_path, "down")
    assert stopped == {"stopped": ["rabbitmq-1"]}
    assert not accepts(port)
    assert [start_time(pid) for pid in started["pids"]] == [None, None]
    assert _json(tmp_path, "status") == {"servers": []}
    assert not (tmp_path / ".flyball" / "servers" / "rabbitmq-1").exists()


def _children(pid: int) -> list[int]:
    children = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if file.read_text().rpartition(")")[2].split()[1] == str(pid):
                children.append(int(file.parent.name))
    return children


@pytest.mark.skipif(not installed(), reason="rabbitmq-server is not installed: apt-get install rabbitmq-server")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_while_it_starts_leaves_no_server(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / ".flyball" / "servers" / "rabbitmq-1"
    environment = {key: value for key, value in os.environ.items() if key != "FLYBALL_STATE"}
    with subprocess.Popen(
        [sys.executable, "-m", "flyball", "broker", "up", "rabbitmq"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as starter:
        while not (folder / "server.log").exists():
            assert starter.poll() is None
            time.sleep(0.01)
        while len(children := _children(starter.pid)) < 3:  # the server, its port mapper, the guardian
            assert starter.poll() is None
            time.sleep(0.01)
        starter.send_signal(number)
        starter.communicate()
    if number == signal.SIGTERM:
        assert starter.returncode == 128 + number
        assert _json(tmp_path, "status") == {"servers": []}
    else:  # it could clean up nothing itself
        (left,) = _json(tmp_path, "status")["servers"]
        assert (left["name"], left["running"]) == ("rabbitmq-1", False)
    while any(start_time(pid) for pid in children):
        time.sleep(0.02)
    _json(tmp_path, "down")
    assert not folder.exists()


def test_kafka_up_used_and_down(tmp_path: Path, kafka: KafkaServer) -> None:
    del kafka  # only so that a machine without Kafka skips this too
    try:
        (started,) = _json(tmp_path, "up", "kafka")["servers"]
        assert (started["name"], started["running"], set(started["urls"])) == ("kafka-1", True, {"kafka"})
        command = [sys.executable, "-m", "flyball", "publish", started["url"], "t", "--declare", "log"]
        used = subprocess.run([*command, "--count", "3", "--json"], capture_output=True, text=True, check=False)
        assert json.loads(used.stdout)["confirmed"] == 3, used.stderr
        assert _json(tmp_path, "status")["servers"] == [started]
    finally:
        stopped = _json(tmp_path, "down")
    assert stopped == {"stopped": ["kafka-1"]}
    assert [start_time(pid) for pid in started["pids"]] == [None]
    assert not (tmp_path / ".flyball" / "servers" / "kafka-1").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "joram"), "rabbitmq, kafka"),
        (("up", "rabbitmq", "--nodes", "0"), "1 to 32"),
        (("up", "rabbitmq", "--nodes", "2", "--port", "5672"), "--port needs --nodes 1, got --nodes 2"),
        (("up", "kafka", "--port", "70000"), "from 1 to 65535, got 70000"),
        (("up", "kafka", "--version", "4"), "--version is for rabbitmq, got kafka --version 4"),
        (("up", "rabbitmq", "--version", "2"), "the version of RabbitMQ must be 4, got 2"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    answer = _flyball(tmp_path, *arguments)
    assert answer.returncode == 2
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""


@pytest.mark.parametrize("kind", ["rabbitmq", "kafka"])
def test_a_port_that_is_in_use_is_named(tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        answer = _flyball(tmp_path, "up", kind, "--port", str(port))
    assert answer.returncode == 2
    assert f"port {port} is in use" in answer.stderr
    assert _json(tmp_path, "status") == {"servers": []}


def test_another_version_of_rabbitmq(tmp_path: Path, rabbitmq_4: RabbitMqNode) -> None:
    del rabbitmq_4  # only so that a machine without it skips this too
    try:
        (started,) = _json(tmp_path, "up", "rabbitmq", "--version", "4")["servers"]
        with pika.BlockingConnection(pika.URLParameters(started["url"].partition("?")[0])) as connection:
            version = connection._impl.server_properties["version"]
        assert version.startswith("4.")
        assert _json(tmp_path, "status")["servers"] == [started]
    finally:
        assert _json(tmp_path, "down") == {"stopped": ["rabbitmq-1"]}
    assert [start_time(pid) for pid in started["pids"]] == [None, None]
