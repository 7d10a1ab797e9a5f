"""Kill -9 of the publishing program at random points: every accepted message arrives, whole, under its own id."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from flyball.brokers import connect
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.testing.crash import body_of

CLIENT = Path(__file__).with_name("publishing_client.py")
KILLS = 10
A_RUN = 2000


def publish_and_kill(url: str, outbox: Path, run: str, first: int, kill_after: int | None) -> list[str]:
    """The ids that the program said were accepted before it was killed (None: it may finish)."""
    command = [sys.executable, str(CLIENT), url, "orders", str(outbox), run, str(first)]
    command.append(str(A_RUN if kill_after is not None else 50))
    accepted: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            word, _, id = line.strip().partition(" ")
            if word == "accepted":
                accepted.append(id)
                if kill_after is not None and len(accepted) >= kill_after:
                    child.kill()
                    break
        # What it had said before it died counts too.
        rest = child.stdout.read().splitlines()
        accepted += [line.partition(" ")[2] for line in rest if line.startswith("accepted ") and len(line) > 20]
    assert kill_after is not None or child.returncode == 0
    return accepted


async def received(url: str, expected: int) -> dict[str, set[bytes]]:
    """Every message in the queue, by id."""
    found: dict[str, set[bytes]] = {}
    async with await connect(url) as broker:
        receiver = await broker.receiver("orders", window=1000)
        while got := await receiver.receive(1000, timeout_s=2.0 if len(found) >= expected else 20.0):
            for delivery in got:
                found.setdefault(delivery.message.id, set()).add(delivery.message.body)
            await receiver.ack(*got)
    return found


async def declare(url: str) -> None:
    async with await connect(url) as broker:
        await broker.delete("orders")
        await broker.declare("orders")


@pytest.mark.parametrize("broker", ["sqlite", "rabbitmq"])
def test_every_accepted_message_survives_kill_9(
    broker: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    if broker == "rabbitmq":
        node: RabbitMqNode = request.getfixturevalue("rabbitmq")
        url = node.amqp_url
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    asyncio.run(declare(url))
    accepted: list[str] = []
    for kill in range(KILLS):
        run = f"k{kill}"
        accepted += publish_and_kill(url, tmp_path / "outbox.db", run, 0, rng.randrange(1, 400))
    accepted += publish_and_kill(url, tmp_path / "outbox.db", "end", 0, None)
    found = asyncio.run(received(url, len(set(accepted))))
    lost = set(accepted) - set(found)
    assert not lost, f"seed {seed}: {len(lost)} accepted messages never arrived, such as {sorted(lost)[:3]}"
    changed = [id for id, bodies in found.items() if bodies != {body_of(id)}]
    assert not changed, f"seed {seed}: {changed[:3]} arrived with another content"
    assert len(set(accepted)) > KILLS
