"""Producers and consumers with rates of their own, on a cluster or on plain brokers, and what they achieve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple, Self

from flyball.brokers import Broker, Message
from flyball.brokers.port import BrokerError, Receiver, Sender
from flyball.message import new_id

BODY = bytes(1024)
AT_ONCE = 20
"""Confirms that a producer waits for, and deliveries that a consumer has, at a time."""
_RETRY_S = 0.05
_BEHIND_S = 0.5
"""A client that is slower than its rate makes up for no more than this."""


class Event(NamedTuple):
    """A batch that was confirmed or delivered: when, where, how many messages."""

    time_s: float
    node: str
    size: int


@dataclass
class Client:
    """One client and what it did. `per_s` None: as fast as it can."""

    per_s: float | None
    find_node: Callable[[], str]
    at_once: int = AT_ONCE
    events: list[Event] = field(default_factory=list)

    def note(self, count: int) -> None:
        self.events.append(Event(time.monotonic(), self.find_node(), count))

    def count(self, since_s: float, until_s: float) -> int:
        return sum(event.size for event in self.events if since_s <= event.time_s < until_s)


class Rates(NamedTuple):
    """Messages a second of all clients, and by how much the queues grew."""

    published_per_s: float
    delivered_per_s: float
    growth_per_s: float


class Load:
    """Clients that work until the end of the context."""

    def __init__(self) -> None:
        self.producers: list[Client] = []
        self.consumers: list[Client] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        faults = [one for one in ended if isinstance(one, Exception)]
        if faults and error is None:
            raise faults[0]

    async def add_producers(
        self, broker: Broker, queue: str, count: int, per_s: float | None = None, at_once: int = AT_ONCE
    ) -> None:
        for _ in range(count):
            sender = await broker.sender(queue)
            client = Client(per_s, partial(_find_node, sender), at_once)
            self.producers.append(client)
            self._tasks.append(asyncio.create_task(_produce(client, sender)))

    async def add_consumers(
        self, broker: Broker, queue: str, count: int, per_s: float | None = None, at_once: int = AT_ONCE
    ) -> None:
        for _ in range(count):
            receiver = await broker.receiver(queue, window=at_once)
            client = Client(per_s, partial(_find_node, receiver), at_once)
            self.consumers.append(client)
            self._tasks.append(asyncio.create_task(_consume(client, receiver)))

    async def measure(self, seconds: float) -> Rates:
        """The rates of the next seconds."""
        since_s = time.monotonic()
        await asyncio.sleep(seconds)
        return self.rates(since_s, time.monotonic())

    def rates(self, since_s: float, until_s: float) -> Rates:
        published, delivered = (
            sum(client.count(since_s, until_s) for client in clients) / (until_s - since_s)
            for clients in (self.producers, self.consumers)
        )
        return Rates(published, delivered, published - delivered)


def _find_node(end: Sender | Receiver) -> str:
    """The node of a cluster that it is connected to now; of a plain broker there is one only."""
    return str(getattr(end, "node", ""))


async def _produce(client: Client, sender: Sender) -> None:
    due_s = time.monotonic()
    while True:
        await _send(sender, client.at_once)
        client.note(client.at_once)
        now_s = time.monotonic()
        if client.per_s is None:
            await asyncio.sleep(0)
            continue
        due_s = max(due_s, now_s - _BEHIND_S) + client.at_once / client.per_s
        await asyncio.sleep(max(0.0, due_s - now_s))


async def _send(sender: Sender, count: int) -> None:
    """As a publisher does: what was not confirmed is sent again, with the same id."""
    messages = [Message(BODY, new_id()) for _ in range(count)]
    while messages:
        results = await sender.send_batch(messages)
        failed = {result.id for result in results if not result.ok}
        messages = [message for message in messages if message.id in failed]
        if messages:
            await asyncio.sleep(_RETRY_S)


async def _consume(client: Client, receiver: Receiver) -> None:
    """Messages are acknowledged when their work is done, which takes as long as the rate says."""
    free_s = time.monotonic()
    while True:
        try:
            deliveries = await receiver.receive(client.at_once, timeout_s=1.0)
            if deliveries and client.per_s is not None:
                now_s = time.monotonic()
                free_s = max(free_s, now_s - _BEHIND_S) + len(deliveries) / client.per_s
                await asyncio.sleep(max(0.0, free_s - now_s))
            await receiver.ack(*deliveries)
        except BrokerError:
            await asyncio.sleep(_RETRY_S)
            continue
        if deliveries:
            client.note(len(deliveries))
        await asyncio.sleep(0)


def percentile(values: Sequence[float], part: float) -> float:
    """The value that `part` of all do not exceed.

    >>> percentile([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, -(-round(100 * part) * len(ordered) // 100) - 1)]


def gaps_s(client: Client) -> list[float]:
    """From the last batch at one node to the first at the next."""
    return [after.time_s - before.time_s for before, after in pairwise(client.events) if after.node != before.node]
