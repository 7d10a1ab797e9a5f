"""`from flyball import …`: every public name, with its real type, and instant to import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flyball
from flyball.errors import DISTRIBUTION

SOURCES = Path(flyball.__file__).parents[1]

PROGRAM = """\
import asyncio

from flyball import (
    Capacity,
    Consumer,
    DrainBy,
    GroupConfig,
    Latency,
    Loop,
    Message,
    Pipeline,
    PipelineConfig,
    Publisher,
    Rate,
    RetryPolicy,
    SyncPublisher,
    connect,
    regulate,
)
from flyball import FlyballError

URL = "memory://orders"


async def handle(message: Message) -> None:
    body: bytes = message.body
    assert body


async def main() -> None:
    async with Publisher(URL, channel="orders", outbox="orders.db", declare="queue") as publisher:
        handle_of_order = await publisher.publish(b"order 17", urgency=0)
        assert handle_of_order.accepted
    with SyncPublisher(URL, channel="orders", outbox="more.db", declare="queue") as blocking:
        assert blocking.publish(b"order 18").accepted
    async with await connect(URL) as broker:
        depth: int = await broker.depth("orders")
        assert depth >= 0
    for goal in ("rate=400", Rate(400.0), Capacity(), Latency(0.5), DrainBy(60.0)):
        consumer = Consumer(URL, queue="orders", handler=handle, goal=goal, retries=RetryPolicy(retries=1))
        try:
            await consumer.run(seconds=1.0)
        except FlyballError:
            raise
    group = GroupConfig(name="shop", topics={"orders": 8}, store="sqlite:///groups.db", rack="r1")
    owned = Consumer(URL, group=group, handler=handle).stats.owned
    assert owned is None or not owned


asyncio.run(main())
"""


def _check(folder: Path, program: str, *, settings: str = "") -> list[str]:
    """What `mypy --strict` says about the program of a user."""
    (folder / "program.py").write_text(program)
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\n" + settings)
    answer = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(folder.parent / "mypy-cache"), "program.py"],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode in (0, 1), answer.stdout + answer.stderr
    return [line for line in answer.stdout.splitlines() if line.startswith("program.py")]


def test_a_program_that_uses_every_name_is_well_typed(tmp_path: Path) -> None:
    assert _check(tmp_path, PROGRAM) == []


def test_every_mistake_is_an_error(tmp_path: Path) -> None:
    program = PROGRAM
    for right, wrong in (
        ("import FlyballError", "import FlybalError as FlyballError"),
        ('channel="orders", outbox="orders.db"', 'chanel="orders", outbox="orders.db"'),
        ('publish(b"order 17", urgency=0)', 'publish("order 17")'),
        ("handle_of_order.accepted", "handle_of_order.acepted"),
        ('channel="orders", outbox="more.db"', 'chanel="orders", outbox="more.db"'),
        ('blocking.publish(b"order 18")', 'blocking.publish(b"order 18", urgenci=1)'),
        ("await connect(URL)", "await connect(17)"),
        ('broker.depth("orders")', 'broker.deep("orders")'),
        ("Rate(400.0)", "Rate(rate=400.0)"),
        ("retries=RetryPolicy(retries=1)", 'retries=RetryPolicy(retries="1")'),
        ("consumer.run(seconds=1.0)", "consumer.runs(seconds=1.0)"),
        ("message.body", "message.boddy"),
        ('rack="r1"', 'rak="r1"'),
        ("stats.owned", "stats.owns"),
    ):
        assert program.count(right) == 1
        program = program.replace(right, wrong)
    before, after = PROGRAM.splitlines(), program.splitlines()
    mistaken = {number for number, line in enumerate(after, 1) if line != before[number - 1]}
    errors = [line.split(":") for line in _check(tmp_path, program) if ": error: " in line]
    assert {int(number) for _, number, *_ in errors} == mistaken


def test_no_public_name_is_any(tmp_path: Path) -> None:
    names = [name for name in flyball.__all__ if name != "__version__"]
    revealed = "".join(f"reveal_type({name})\n" for name in names)
    lines = _check(tmp_path, f"from flyball import {', '.join(names)}\n{revealed}")
    assert [line for line in lines if 'Revealed type is "Any"' in line or ": note:" not in line] == []
    assert len(lines) == len(names)


def test_regulate_knows_what_it_returns(tmp_path: Path) -> None:
    """confluent-kafka says that it has types; pika has some, and a checker is told to look at them."""
    program = """\
import pika
from confluent_kafka import Consumer

from flyball import RegulatedChannel, regulate


def on_message(channel: RegulatedChannel, method: pika.spec.Basic.Deliver, _: object, body: bytes) -> None:
    channel.basic_ack(method.delivery_tag)


channel = regulate(pika.BlockingConnection().channel(), goal="rate=400")
tag = channel.basic_consume("orders", on_message)
channel.start_consuming()
consumer = regulate(Consumer({"group.id": "shop"}), goal="rate=400")
message = consumer.poll(1.0)
if message is not None:
    value: bytes | None = message.value()
    consumer.done(message)
for regulated in (channel, consumer):
    regulated.goal = "rate=800"
reveal_type(channel)
reveal_type(tag)
reveal_type(message)
reveal_type(consumer.window + channel.window)
reveal_type(consumer.stats.residence_s)
reveal_type(consumer.status + channel.status)
reveal_type(channel.steps()[0].reason)
"""
    settings = "[mypy-pika.*]\nfollow_untyped_imports = true\n"
    revealed = [line.partition("Revealed type is ")[2] for line in _check(tmp_path, program, settings=settings)]
    assert revealed == [
        '"flyball.consumer.external.pika_channel.RegulatedChannel"',
        '"str"',
        '"confluent_kafka.cimpl.Message[bytes, bytes] | None"',
        '"float"',
        '"float | None"',
        '"str"',
        '"str"',
    ]


def test_every_public_name_is_there() -> None:
    for name in flyball.__all__:
        assert getattr(flyball, name) is not None
    with pytest.raises(AttributeError, match="'Publsher'"):
        _ = flyball.Publsher  # type: ignore[attr-defined]


def test_importing_flyball_imports_nothing_heavy() -> None:
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; before = set(sys.modules); import flyball; print(*(set(sys.modules) - before))",
        ],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    added = {module.partition(".")[0] for module in answer.stdout.split()}
    assert (
        added & {"numpy", "scipy", "pydantic", "typer", "pika", "confluent_kafka", "rstream", "pyspark"} == set()
    )
    assert {module for module in answer.stdout.split() if module.startswith("flyball.")} == set()


def test_every_extra_that_a_hint_names_exists() -> None:
    project = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert project["name"] == DISTRIBUTION
    for source in SOURCES.rglob("*.py"):
        text = source.read_text()
        named = re.findall(r"""require\("[^"]+", "([a-z]+)"\)""", text)
        for call in re.findall(r"install_command\(([^)*]*)\)", text):
            named += re.findall(r"""["']([a-z]+)["']""", call)
        assert set(named) <= set(extras), source
    installed = {name for name in extras if name not in ("all", "dev")}
    assert extras["all"] == [f"{DISTRIBUTION}[{','.join(extras_of(extras['all'][0]))}]"]
    assert set(extras_of(extras["all"][0])) == installed


def extras_of(requirement: str) -> list[str]:
    return requirement.partition("[")[2].rstrip("]").split(",")
