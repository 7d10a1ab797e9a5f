"""Where a consumer of the tests reads, and waiting for what has to come."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flyball.brokers import Message, connect


@dataclass(frozen=True)
class ChannelUnderTest:
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


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait for what has to come; the bound only ends a test that would hang."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)
