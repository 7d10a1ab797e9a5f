"""flyball broker: servers outlive the command, are found again, and leave nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flyball.processes.process import start_time
from flyball.servers.kafka import KafkaServer
from flyball.servers.ports import accepts
from flyball.servers.rabbitmq import installed


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
