"""Every command and every program of the README runs as it is printed, in the order of the page, in a new folder.

A comment `<!-- not run by the tests: … -->` above a block leaves it out; one marked `<!-- needs RabbitMQ -->` is
run on a port that is free here instead of RabbitMQ's usual one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from flyball.servers.ports import free_ports
from flyball.servers.rabbitmq import installed

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)

# What `make demo` does not install: until the page says how to add it, nothing may need it.
BLOCKED = (
    "pika",
    "rstream",
    "confluent_kafka",
    "simpy",
    "matplotlib",
    "psutil",
    "fastapi",
    "uvicorn",
    "prometheus_client",
)
SITE = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED!r}))
"""


@dataclass(frozen=True)
class Block:
    mark: str
    language: str
    text: str


def blocks() -> list[Block]:
    page = (ROOT / "README.md").read_text()
    found = [Block(match["mark"] or "", match["language"], match["text"]) for match in FENCE.finditer(page)]
    assert page.count("```") == 2 * len(found)
    return found


class Walk:
    """A user who follows the page: one folder, one shell after another, activated from where the page says so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = ""
        (folder / "examples").symlink_to(ROOT / "examples")
        activate = folder / ".venv" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITE)
        self.environment = {
            "HOME": os.environ.get("HOME", str(folder)),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT / "src")]),
        } | {key: value for key, value in os.environ.items() if key == "JAVA_HOME" or key.endswith("_proxy")}

    def run(self, block: Block) -> str:
        text = block.text
        if block.language == "python":
            (self._folder / "program.py").write_text(text)
            text = "python program.py\n"
        answer = subprocess.run(
            ["/bin/bash", "-e", "-o", "pipefail", "-c", self._before + text],
            cwd=self._folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, f"{block.text}\n{answer.stdout}\n{answer.stderr}"
        if "source .venv/bin/activate" in text:
            self._before = "source .venv/bin/activate\n"
        return answer.stdout


def test_every_block_without_a_server_runs(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    ran = [walk.run(block) for block in blocks() if not block.mark]
    assert len(ran) >= 5
    assert "y(k+1) = 0.2597·y(k) + 59.62·u(k)" in "".join(ran)


@pytest.mark.skipif(not installed(), reason="rabbitmq-server is not installed: apt-get install rabbitmq-server")
def test_every_block_that_needs_rabbitmq_runs(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    walk = Walk(tmp_path)
    (tmp_path / "site" / "sitecustomize.py").unlink()
    wanted = [block for block in blocks() if block.mark == "needs RabbitMQ"]
    assert wanted
    activation = next(block for block in blocks() if "activate" in block.text)
    walk.run(activation)
    try:
        for block in wanted:
            text = block.text.replace("--port 5672", f"--port {port}")
            walk.run(Block("", block.language, text.replace("amqp://localhost/", f"amqp://localhost:{port}/")))
    finally:
        walk.run(Block("", "", "flyball broker down\n"))


def test_every_mark_is_understood() -> None:
    unknown = {block.mark for block in blocks() if not block.mark.startswith("not run by the tests: ")}
    assert unknown == {"", "needs RabbitMQ"}
