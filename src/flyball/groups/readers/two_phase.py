"""Queues that members hand over themselves: the owner drains and closes, then the next one opens.

Ranked goals: no message is in flight at two members; the order of each queue is kept; other queues do not notice;
a queue is unread only briefly.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from flyball.backoff import ENDLESS, delays_s
from flyball.brokers.port import Broker, LoginRefused, Receiver, Unreachable
from flyball.groups.merged_receiver import MergedReceiver, Source
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers, QueueLoad
from flyball.groups.readers.releases import Release, Releases

log = logging.getLogger("flyball.groups")

_STOP_S = 1.0  # how long the broker may take to stop sending, whatever the deadline
OPEN_S = 1.0  # how long `take` waits; a broker that is away is tried again in the background


def queue_name(queue: Queue) -> str:
    """
    >>> queue_name(("orders", 3))
    'orders.3'
    """
    return f"{queue[0]}.{queue[1]}"


class TwoPhaseReaders:
    """See `port.QueueReaders`. The queues of a topic are orders.0, orders.1, …; missing ones are declared."""

    def __init__(self, broker: Broker, window: int = 100) -> None:
        self._broker = broker
        self.receiver = MergedReceiver(window)
        self._openings: dict[Queue, asyncio.Task[None]] = {}
        self._releases = Releases(self.receiver.wake_waiters)

    @property
    def switches(self) -> bool:
        return False

    @property
    def hand_overs(self) -> HandOvers:
        return self._releases.hand_overs

    async def queues(self, topics: Mapping[str, int | None]) -> dict[str, list[int]]:
        numbers = await find_numbers(self._broker, topics)
        for topic, found in numbers.items():
            for number in found:
                await self._declare((topic, number))
        return numbers

    async def _declare(self, queue: Queue) -> None:
        await self._broker.declare(queue_name(queue))

    async def take(self, queue: Queue, generation: int) -> None:  # noqa: ARG002  two members never overlap
        if queue in self._releases:
            await self.release(queue, 0.0)
        await self._begin(queue)

    async def _begin(self, queue: Queue) -> None:
        """Open a queue; one that cannot be opened at once is tried again until it is released."""
        if self.receiver.source(queue) is not None:
            return
        opening = self._openings.get(queue)
        if opening is None or opening.done():
            opening = self._openings[queue] = asyncio.create_task(self._open_in_time(queue))
        await asyncio.wait((opening,), timeout=OPEN_S)
        if opening.done() and not opening.cancelled():
            opening.result()

    async def _open_in_time(self, queue: Queue) -> None:
        for delay_s in delays_s(ENDLESS, longest_s=1.0):
            try:
                self.receiver.add(queue, await self._open(queue))
            except (Unreachable, LoginRefused) as error:  # away, or its last reader still has it
                log.warning("queue %s cannot be read yet: %s", queue_name(queue), error)
                await asyncio.sleep(delay_s)
            else:
                return

    async def _open(self, queue: Queue) -> Receiver:
        return await self._broker.receiver(queue_name(queue), window=max(1, self.receiver.window))

    async def release(self, queue: Queue, deadline_s: float) -> bool:
        opening = self._openings.pop(queue, None)
        if opening is not None and not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        source = self.receiver.source(queue)
        if source is None:
            return True
        return await self._releases.run(queue, deadline_s, partial(self._release, source))

    async def _release(self, source: Source, release: Release) -> bool:
        began_s, asked_s = time.monotonic(), release.deadline_s
        stopping = asyncio.create_task(self.receiver.stop_taking(source))
        stopping.add_done_callback(lambda _: self.receiver.wake_waiters())
        stopped = await self.receiver.wait_until(stopping.done, lambda: max(release.deadline_s, began_s + _STOP_S))
        # The time until the broker has stopped sending is not that of the handlers.
        late_s = time.monotonic() - began_s
        settled = await self.receiver.wait_until(
            lambda: self.receiver.is_settled(source),
            lambda: release.deadline_s + (late_s if release.deadline_s == asked_s else 0.0),
        )
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await self.receiver.remove(source)
        return stopped and settled

    async def pass_on(self, queue: Queue, deadline_s: float) -> bool:
        return await self.release(queue, deadline_s)

    async def stand_by(self) -> None:
        """The broker hands nothing over by itself."""

    async def release_all(self, deadline_s: float) -> None:
        queues = self._openings.keys() | set(self.receiver.queues)
        await asyncio.gather(*(self.release(queue, deadline_s) for queue in queues))

    def loads(self) -> Mapping[Queue, QueueLoad]:
        return self.receiver.loads(self.receiver.queues)

    async def depth(self) -> int:
        """Messages that wait in the queues that are read."""
        names = [queue_name(queue) for queue in self.receiver.queues]
        return sum(await asyncio.gather(*(self._broker.depth(name) for name in names)))

    async def close(self) -> None:
        openings = [task for task in self._openings.values() if not task.done()]
        for task in openings:
            task.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        await self._releases.cancel()
        await self.receiver.close()


async def find_numbers(broker: Broker, topics: Mapping[str, int | None]) -> dict[str, list[int]]:
    """The numbers of the queues of each topic; None: of those that exist."""
    found: dict[str, list[int]] = {}
    names = [channel.name for channel in await broker.channels()] if None in topics.values() else []
    for topic, count in topics.items():
        if count is not None:
            found[topic] = list(range(count))
            continue
        ends = (name.removeprefix(f"{topic}.") for name in names if name.startswith(f"{topic}."))
        found[topic] = sorted(int(end) for end in ends if end.isdecimal() and str(int(end)) == end)
    return found
