"""Publishes a numbered sequence of events to a log, each exactly once and in order, at a given rate.

The log knows the highest number of this producer, so a feed that was killed asks for it and continues with the
next event: the feed has no state of its own, and nothing is stored twice. An ordered `Publisher` chooses the batch
size.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from flyball.backoff import delays_s
from flyball.brokers import Broker, Message, connect
from flyball.errors import FlyballError
from flyball.publisher.handle import Handle
from flyball.publisher.options import OrderingConfig
from flyball.publisher.publisher import Publisher, Undelivered
from flyball.publisher.target_sender import TargetStats

Events = Callable[[int], Iterator[bytes]]
"""The events from a given number on."""

_PACE_S = 0.05
_MAX_GROUP = 1000
_MAX_WAITING = 10_000
_GIVE_UP_S = 60.0
_ATTEMPTS = 30


class FeedFailed(FlyballError, RuntimeError):
    """The broker did not store an event; a later run continues with that event."""


class FeedProgress(NamedTuple):
    """How many events the log holds, and the publisher's settings and estimates (`Publisher.stats`)."""

    events: int
    publisher: TargetStats


@dataclass(frozen=True, slots=True)
class Feed:
    """Where the events come from and where they go.

    `end_mark` is sent after the last event: the input is complete.
    """

    log: str
    events: Events
    end_mark: bytes
    producer: str = "feed"
    per_second: float | None = None

    async def run(self, url: str, stop: asyncio.Event) -> AsyncIterator[FeedProgress]:
        """Publish until the end or until `stop` is set; yield the progress now and then."""
        async with await connect(url) as broker:
            await broker.declare(self.log, "log")
            last = await (await broker.sender(self.log, producer=self.producer)).last_sequence()
            first = 0 if last is None else last + 1
            publisher = Publisher(
                url,
                channel=self.log,
                outbox=None,
                ordering=OrderingConfig(self.producer, first),
                close_timeout_s=1.0,
            )
            number = first
            # What does not leave in time after a stop is no loss: the next run generates it again.
            with suppress(Undelivered):
                async with publisher:
                    async for number in self._publish(publisher, first, stop):  # noqa: B007
                        yield FeedProgress(first + publisher.stats.confirmed, publisher.stats.targets[0])
            if not stop.is_set():
                await self._send_end_mark(broker, number)
                yield FeedProgress(number, publisher.stats.targets[0])

    async def _send_end_mark(self, broker: Broker, number: int) -> None:
        # Numbered apart from the events, by how many there were: one mark for each end the input had.
        sender = await broker.sender(self.log, producer=f"{self.producer}-end")
        mark = Message(self.end_mark, id=f"{self.producer}-end-{number}")
        for pause_s in delays_s(_ATTEMPTS):
            (result,) = await sender.send_batch([mark], sequence=number)
            if result.error is None:
                return
            await asyncio.sleep(pause_s)
        raise FeedFailed(f"log {self.log!r} did not store the end mark after event {number}: {result.error}")

    async def _publish(self, publisher: Publisher, first: int, stop: asyncio.Event) -> AsyncIterator[int]:
        """Yield the number of the next event, until all events are confirmed or `stop` is set."""
        number, remaining, ended = first, self.events(first), False
        clock = time.monotonic
        started_s = progress_s = clock()
        confirmed = 0
        unconfirmed: deque[Handle] = deque()
        while not stop.is_set():
            stats = publisher.stats
            if stats.confirmed > confirmed or not stats.waiting:
                confirmed, progress_s = stats.confirmed, clock()
            while unconfirmed and unconfirmed[0].is_confirmed:
                unconfirmed.popleft()
            if stats.rejected:
                await asyncio.gather(*(handle.wait_confirmed() for handle in unconfirmed))  # raises its error
            if clock() - progress_s > _GIVE_UP_S:
                reason = "; ".join(publisher.problems) or "it does not answer"
                raise FeedFailed(
                    f"log {self.log!r} has stored no event after {first + confirmed} for a minute: {reason}"
                )
            if ended and not stats.waiting:
                return
            wanted = min(_MAX_GROUP, _MAX_WAITING - stats.waiting)
            if self.per_second is not None:
                wanted = min(wanted, first + int((clock() - started_s) * self.per_second) + 1 - number)
            bodies = list(itertools.islice(remaining, max(0, wanted)))
            ended = ended or (wanted > 0 and not bodies)
            unconfirmed += await publisher.publish_many(
                Message(body, id=f"{self.producer}-{number + at}") for at, body in enumerate(bodies)
            )
            number += len(bodies)
            yield number
            await asyncio.sleep(_PACE_S if self.per_second is not None else 0.0 if bodies else 0.002)
