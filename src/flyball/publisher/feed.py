"""Feeds a numbered sequence of events into a log, each exactly once, at a given pace.

The log knows the highest number it holds of this producer, so a feed that was killed asks it and goes on with the
next event: nothing is kept here, and nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from flyball.brokers import Broker, Message, Sender
from flyball.brokers.backoff import delays_s
from flyball.brokers.port import BrokerError
from flyball.errors import FlyballError

Events = Callable[[int], Iterator[bytes]]
"""The events from a given number on."""

_PACE_S = 0.05
_LARGEST_BATCH = 1000
_ATTEMPTS = 30


class FeedFailed(FlyballError, RuntimeError):
    """The broker did not take an event after all attempts; a later run continues with that event."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Where the events come from and where they go.

    `end_mark` is sent after the last event and tells the readers that the input is complete.
    """

    log: str
    events: Events
    end_mark: bytes
    producer: str = "feed"
    per_second: float | None = None

    async def run(self, broker: Broker, stop: asyncio.Event) -> AsyncIterator[int]:
        """Send, yielding after each batch how many events the log holds, until the end or until `stop` is set."""
        await broker.declare(self.log, "log")
        sender = await broker.sender(self.log, producer=self.producer)
        last = await sender.last_sequence()
        number = 0 if last is None else last + 1
        remaining = self.events(number)
        clock = asyncio.get_running_loop().time
        started, first = clock(), number
        while not stop.is_set():
            wanted = _LARGEST_BATCH
            if self.per_second is not None:
                due = first + int((clock() - started) * self.per_second) + 1
                wanted = min(wanted, due - number)
            bodies = list(itertools.islice(remaining, max(0, wanted)))
            if wanted > 0 and not bodies:
                # Numbered apart from the events, by how many there were: one mark for each end the input had.
                marks = await broker.sender(self.log, producer=f"{self.producer}-end")
                await self._deliver(marks, [self.end_mark], number)
                yield number
                return
            if bodies:
                await self._deliver(sender, bodies, number)
                number += len(bodies)
                yield number
            if self.per_second is not None:
                await asyncio.sleep(_PACE_S)

    async def _deliver(self, sender: Sender, bodies: list[bytes], number: int) -> None:
        """Send until all are in the log; it drops what it has already."""
        messages = [Message(body, id=f"{self.producer}-{number + i}") for i, body in enumerate(bodies)]
        errors: list[BrokerError] = []
        for pause_s in delays_s(_ATTEMPTS):
            results = await sender.send_batch(messages, sequence=number)
            errors = [result.error for result in results if result.error is not None]
            if not errors:
                return
            await asyncio.sleep(pause_s)
        raise FeedFailed(f"log {self.log!r} did not take event {number} after {_ATTEMPTS} attempts: {errors[0]}")
