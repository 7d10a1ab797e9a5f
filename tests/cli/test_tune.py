"""flyball tune and flyball consume --config, as a user runs them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from flyball.brokers import Message, connect

_HANDLER = """
import asyncio
async def handle(message):
    await asyncio.sleep(0.02)
"""


_WRAPPED = _HANDLER.replace("def handle", "def work") + "handle = lambda message: work(message)\n"


def flyball(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flyball", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def fill(folder: Path) -> None:
    async def send() -> None:
        async with await connect(f"sqlite:///{folder}/events.db") as broker:
            await broker.declare("orders")
            sender = await broker.sender("orders")
            for _ in range(10):
                await sender.send_batch([Message(b"x") for _ in range(500)])

    asyncio.run(send())


def test_tune_writes_a_config_that_consume_runs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(_WRAPPED)  # 20 ms also behind a lambda
    fill(tmp_path)
    where = ("sqlite:///events.db", "--queue", "orders", "--handler", "shop:handle", "--goal", "rate=200")
    tuned = flyball(
        tmp_path,
        "tune",
        *where,
        *("--max-window", "10", "--samples", "18", "--hold", "2", "--period", "0.25"),
        *("--out", "orders.toml", "--plot", "orders.svg", "--json"),
    )
    assert tuned.returncode == 0, tuned.stderr
    found = json.loads(tuned.stdout)
    assert 10.0 < found["model"]["b"] < 60.0  # 20 ms a message and what the machine adds: below 50/s a place
    assert {one["name"] for one in found["candidates"]} == {"little", "pi_ff", "pi", "state_feedback"}
    assert found["candidates"][0]["accepted"]
    assert (tmp_path / "orders.svg").read_text().startswith("<?xml")

    ran = flyball(tmp_path, "consume", "--config", "orders.toml", "--seconds", "3", "--json", "--quiet")
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["goal"] == "rate=200"
    assert figures["acked"] == figures["handed"] > 0
    assert 2.0 < figures["window"] < 12.0


def test_profiles_are_tuned_one_by_one_and_the_consumer_uses_the_matching_one(tmp_path: Path) -> None:
    """By day a message takes 20 ms, by night 60 ms."""
    fill(tmp_path)
    where = ("sqlite:///events.db", "--queue", "orders", "--handler", "shop:handle", "--goal", "rate=100")
    experiment = ("--max-window", "10", "--samples", "18", "--hold", "2", "--period", "0.25")
    for name, took_s in (("day", "0.02"), ("night", "0.06")):
        (tmp_path / "shop.py").write_text(_HANDLER.replace("0.02", took_s))
        tuned = flyball(tmp_path, "tune", *where, *experiment, "--out", "orders.toml", "--profile", name)
        assert tuned.returncode == 0, tuned.stderr
    tables = tomllib.loads((tmp_path / "orders.toml").read_text())["profile"]
    assert [one["name"] for one in tables] == ["day", "night"]

    for name, took_s in (("night", "0.06"), ("day", "0.02")):
        (tmp_path / "shop.py").write_text(_HANDLER.replace("0.02", took_s))
        ran = flyball(tmp_path, "consume", "--config", "orders.toml", "--seconds", "4", "--json", "--quiet")
        assert ran.returncode == 0, ran.stderr
        assert f"profile {name}" in json.loads(ran.stdout)["status"]


def test_the_signal_is_repeated_while_the_model_is_too_uncertain(tmp_path: Path) -> None:
    """One handler at a time: no window changes the rate, so no run makes a PI acceptable."""
    (tmp_path / "shop.py").write_text(_HANDLER)
    fill(tmp_path)
    where = ("sqlite:///events.db", "--queue", "orders", "--handler", "shop:handle", "--goal", "rate=100")
    experiment = ("--max-window", "10", "--samples", "12", "--hold", "2", "--period", "0.1", "--concurrency", "1")
    tuned = flyball(tmp_path, "tune", *where, *experiment, "--controller", "pi", "--out", "orders.toml")
    assert tuned.returncode == 2, tuned.stderr
    for run in (2, 3, 4):
        assert f"run {run} of at most 4" in tuned.stderr, tuned.stderr
    assert "pi is not a candidate for this plant after" in tuned.stderr
    assert not (tmp_path / "orders.toml").exists()


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(_HANDLER)
    url = ("memory://x", "--queue", "q")
    for arguments, said in (
        (
            ("tune", *url, "--handler", "shop", "--goal", "rate=4"),
            "handler must be named as module:function, got 'shop'",
        ),
        (("tune", *url, "--handler", "shop:sell", "--goal", "rate=4"), "the module 'shop' has no 'sell'"),
        (("tune", *url, "--handler", "shop:handle", "--goal", "speed=4"), "goal must be one of rate=400"),
        (("tune", *url, "--handler", "shop:handle", "--goal", "capacity"), "tuning needs the goal rate=…"),
        (
            ("tune", *url, "--handler", "shop:handle", "--goal", "rate=4", "--controller", "pid"),
            "controller must be one of little, pi_ff, pi, state_feedback, got 'pid'",
        ),
        (("consume",), "a broker and a queue are required"),
        (("consume", "--config", "none.toml"), "none.toml: cannot be read"),
        (("consume", "memory://x", "q", "--config", "none.toml"), "--config excludes URL, CHANNEL"),
    ):
        answer = flyball(tmp_path, *arguments)
        assert answer.returncode == 2, (arguments, answer.stderr)
        assert said in answer.stderr
        assert "Traceback" not in answer.stderr
