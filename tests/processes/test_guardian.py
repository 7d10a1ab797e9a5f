"""A program that is killed leaves no server and no folder behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyball.processes.process import start_time
from flyball.servers.rabbitmq import installed

# `sleep` stands for the server: the guardian knows processes and folders, not what they are for.
_PROGRAM = """
import json, os, sys, time
from pathlib import Path
from flyball.servers.local import LocalServer

class Sleeper(LocalServer):
    def start(self):
        folder = self._own_folder()
        self._server = self._spawn(["sleep", "600"], os.environ, folder / "log")

server = Sleeper(folder=Path(sys.argv[2]) if sys.argv[1] == "outlives" else None)
server.start()
if sys.argv[1] == "outlives":
    server.detach()
print(json.dumps({"pids": server.pids, "folder": str(server.folder)}), flush=True)
if sys.argv[1] != "ends":
    time.sleep(600)
"""

_NODE = """
import json, time
from flyball.servers.rabbitmq import RabbitMqNode
node = RabbitMqNode(plugins=())
node.start()
print(json.dumps({"pids": node.pids, "folder": str(node.folder)}), flush=True)
time.sleep(600)
"""


def _start(program: str, *arguments: str) -> tuple[subprocess.Popen[str], list[int], Path]:
    starter = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert starter.stdout is not None
    report = json.loads(starter.stdout.readline())
    return starter, report["pids"], Path(report["folder"])


def _wait_until_gone(pids: list[int], folder: Path) -> None:
    while folder.exists() or any(start_time(pid) for pid in pids):
        time.sleep(0.02)


def test_a_killed_program_leaves_nothing() -> None:
    starter, pids, folder = _start(_PROGRAM, "killed")
    assert start_time(pids[0])
    starter.kill()
    starter.communicate()
    _wait_until_gone(pids, folder)


def test_a_program_that_forgets_its_server_leaves_nothing_once_it_has_ended() -> None:
    starter, pids, folder = _start(_PROGRAM, "ends")
    starter.communicate()
    assert [start_time(pid) for pid in pids] == [None]
    assert not folder.exists()


def test_a_process_that_outlives_its_starter_keeps_running(tmp_path: Path) -> None:
    starter, pids, folder = _start(_PROGRAM, "outlives", str(tmp_path / "server"))
    starter.kill()
    starter.communicate()
    try:
        time.sleep(0.5)  # a guardian would have acted by now
        assert start_time(pids[0])
        assert folder.exists()
    finally:
        subprocess.run(["kill", str(pids[0])], check=True)


@pytest.mark.skipif(not installed(), reason="rabbitmq-server is not installed: apt-get install rabbitmq-server")
def test_a_real_node_ends_with_a_killed_program() -> None:
    starter, pids, folder = _start(_NODE)
    assert len([pid for pid in pids if start_time(pid)]) == 2  # the server and its port mapper
    starter.kill()
    starter.communicate()
    _wait_until_gone(pids, folder)
