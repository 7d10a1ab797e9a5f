"""Members of a group without a coordinator: the tests give and take their queues themselves."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyball.brokers import Message, connect
from flyball.brokers.port import Broker
from flyball.groups.policy.group import Queue
from flyball.groups.readers.open import ConsumerReaders, open_readers
from flyball.lab.rigs.groups.partition_keys import partition_keys


@dataclass(frozen=True)
class GroupUnderTest:
    """A topic of some queues on a broker, and the store of its group."""

    url: str
    store: Path
    topic: str = field(default_factory=lambda: f"orders-{uuid.uuid4().hex[:10]}")
    queues: int = 3

    @property
    def is_log(self) -> bool:
        return self.url.startswith("kafka")

    def queue(self, number: int) -> Queue:
        return self.topic, number

    async def prepare(self) -> None:
        if self.is_log:
            async with await connect(self.url) as broker:
                await broker.declare(self.topic, "log", partitions=self.queues)

    async def send(self, number: int, bodies: Sequence[int]) -> None:
        """Publish numbered messages into one queue."""
        async with await connect(self.url) as broker:
            await self.send_through(broker, number, bodies)

    async def send_through(self, broker: Broker, number: int, bodies: Sequence[int]) -> None:
        messages = [Message(str(body).encode(), id=f"{self.topic}-{number}-{body}") for body in bodies]
        if self.is_log:
            key = (await _keys_of(broker, self))[number]
            messages = [Message(each.body, id=each.id, key=key) for each in messages]
        sender = await broker.sender(self.topic if self.is_log else f"{self.topic}.{number}")
        for first in range(0, len(messages), 200):
            results = await sender.send_batch(messages[first : first + 200])
            assert [result.error for result in results if not result.ok] == []
        await sender.close()


_keys: dict[tuple[str, int], list[bytes]] = {}


async def _keys_of(broker: Broker, group: GroupUnderTest) -> list[bytes]:
    """A key for each partition, found out once."""
    place = group.url, group.queues
    if place not in _keys:
        _keys[place] = await partition_keys(broker, group.queues)
    return _keys[place]


@dataclass
class Handled:
    """What all members have handled, in the order in which handling began."""

    numbers: list[tuple[str, int, int]] = field(default_factory=list)
    """Member, queue and number of each message."""
    redelivered: int = 0

    def of(self, queue: int) -> list[int]:
        return [number for _, q, number in self.numbers if q == queue]

    def by(self, member: str) -> list[int]:
        return [number for name, _, number in self.numbers if name == member]

    def repeats(self) -> dict[tuple[int, int], int]:
        counts = Counter((queue, number) for _, queue, number in self.numbers)
        return {key: count for key, count in counts.items() if count > 1}


class Member:
    """Receives and settles messages, each after `work_s`."""

    def __init__(self, name: str, readers: ConsumerReaders, handled: Handled, work_s: float) -> None:
        self.name, self.readers, self._handled, self.work_s = name, readers, handled, work_s
        self.hold = asyncio.Event()
        self.hold.set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        receiver = self.readers.receiver
        while True:
            for delivery in await receiver.receive(50, timeout_s=1.0):
                body = int(delivery.message.body)
                queue = int(delivery.message.id.rsplit("-", 2)[1])
                self._handled.numbers.append((self.name, queue, body))
                self._handled.redelivered += delivery.redelivered
                task = asyncio.create_task(self._handle(delivery))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _handle(self, delivery: Any) -> None:
        await asyncio.sleep(self.work_s)
        await self.hold.wait()
        await self.readers.receiver.ack(delivery)

    async def close(self) -> None:
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)
        await self.readers.close()


@asynccontextmanager
async def members(
    group: GroupUnderTest, handled: Handled, *names: str, window: int = 8, work_s: float = 0.002
) -> AsyncIterator[list[Member]]:
    """Members of the group, each with a connection of its own."""
    await group.prepare()
    brokers, found = [], []
    try:
        for name in names:
            broker = await connect(group.url)
            brokers.append(broker)
            readers = open_readers(broker, group.topic, f"sqlite:///{group.store}", window=window)
            found.append(Member(name, readers, handled, work_s))
            assert await readers.queues({group.topic: group.queues}) == {group.topic: list(range(group.queues))}
        yield found
    finally:
        await asyncio.gather(*(member.close() for member in found))
        await asyncio.gather(*(broker.close() for broker in brokers))


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait for what has to come; the bound only ends a test that would hang."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)
