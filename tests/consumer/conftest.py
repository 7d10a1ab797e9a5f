"""The brokers that a consumer is tested on, and what tests of this room share."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flyball.brokers import Message, connect


@dataclass(frozen=True)
class Place:
    """A channel on a broker, and how a consumer names it."""

    url: str
    name: str
    log: bool

    @property
    def arguments(self) -> dict[str, Any]:
        return {"channel": self.name, "group": "workers"} if self.log else {"queue": self.name}

    async def send(self, bodies: Sequence[bytes]) -> list[str]:
        """Publish, and the ids."""
        messages = [Message(body) for body in bodies]
        async with await connect(self.url) as broker:
            await broker.declare(self.name, "log" if self.log else "queue")
            sender = await broker.sender(self.name)
            for first in range(0, len(messages), 500):
                results = await sender.send_batch(messages[first : first + 500])
                assert [result.error for result in results if not result.ok] == []
            await sender.close()
        return [message.id for message in messages]


def fresh() -> str:
    return f"orders.{uuid.uuid4().hex[:12]}"


@pytest.fixture
def memory() -> Place:
    return Place(f"memory://{uuid.uuid4().hex}", fresh(), log=False)


@pytest.fixture(params=["classic", "quorum", "stream", "kafka"])
def place(request: pytest.FixtureRequest) -> Place:
    """A channel on each of the real brokers."""
    kind = request.param
    if kind in ("classic", "quorum"):
        url = request.getfixturevalue("amqp_url")
        return Place(f"{url}{'&' if '?' in url else '?'}queue_type={kind}", fresh(), log=False)
    if kind == "stream":
        return Place(request.getfixturevalue("rabbitmq").stream_url, fresh(), log=True)
    return Place(request.getfixturevalue("kafka_url"), fresh(), log=True)
