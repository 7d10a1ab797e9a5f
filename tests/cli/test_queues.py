"""flyball queues: the table and the JSON say what is in the broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from flyball.brokers import connect

FLYBALL = [sys.executable, "-m", "flyball"]


def flyball(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FLYBALL, *map(str, arguments)], capture_output=True, text=True)


def test_channels_are_listed_with_what_is_in_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    flyball("publish", url, "orders", "--declare", "queue", "--count", 12)
    flyball("publish", url, "events", "--declare", "log", "--partitions", 3, "--count", 7)
    flyball("publish", url, "empty", "--declare", "queue", "--count", 0)
    flyball("consume", url, "orders", "--count", 5)
    run = flyball("queues", url, "--json")
    assert run.returncode == 0, run.stderr
    listed = json.loads(run.stdout)
    rows = [(each["name"], each["kind"], each["partitions"], each["depth"]) for each in listed]
    assert rows == [("empty", "queue", 1, 0), ("events", "log", 3, 7), ("orders", "queue", 1, 7)]
    ages = {each["name"]: each["oldest_age_s"] for each in listed}
    assert ages["empty"] is None
    assert ages["orders"] > 0
    printed = flyball("queues", url).stdout.splitlines()
    assert printed[0].split() == ["name", "kind", "partitions", "depth", "oldest", "age", "s"]
    assert [line.split()[:4] for line in printed[1:]] == [list(map(str, row)) for row in rows]


def test_rabbitmq_queues_are_listed(amqp_url: str, tmp_path: Path) -> None:
    name = f"listed-{tmp_path.name}"
    flyball("publish", amqp_url, name, "--declare", "queue", "--count", 3)
    listed = json.loads(flyball("queues", amqp_url, "--json").stdout)
    assert name in [each["name"] for each in listed]


def test_an_empty_broker_and_a_bad_url(tmp_path: Path, closed_port: int) -> None:
    asyncio.run(_make(f"sqlite:///{tmp_path / 'empty.db'}"))
    run = flyball("queues", f"sqlite:///{tmp_path / 'empty.db'}", "--json")
    assert json.loads(run.stdout) == []
    for bad in ("nonsense", f"kafka://127.0.0.1:{closed_port}", f"sqlite:///{tmp_path / 'absent.db'}"):
        run = flyball("queues", bad)
        assert run.returncode == 2
        assert run.stderr.startswith("flyball: ")
        assert run.stderr.count("\n") == 1, run.stderr
    assert not (tmp_path / "absent.db").exists()


async def _make(url: str) -> None:
    async with await connect(url):
        pass
