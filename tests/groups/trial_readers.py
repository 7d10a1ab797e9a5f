"""Readers that read nothing and write down what they were asked to do, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers, QueueLoad


@dataclass
class Timeline:
    """Who read which queue from when to when; shared by the readers of all members."""

    reading: dict[Queue, str] = field(default_factory=dict)
    entries: list[tuple[float, str, Queue, str]] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)

    def take(self, member: str, queue: Queue) -> None:
        other = self.reading.get(queue)
        if other is not None and other != member:
            self.overlaps.append(f"{member} took {queue} while {other} read it")
        self.reading[queue] = member
        self.entries.append((time.monotonic(), "take", queue, member))

    def release(self, member: str, queue: Queue) -> None:
        if self.reading.get(queue) == member:
            del self.reading[queue]
        self.entries.append((time.monotonic(), "release", queue, member))

    def of(self, member: str, what: str) -> list[Queue]:
        return [queue for _, entry, queue, name in self.entries if (entry, name) == (what, member)]


class TrialReaders:
    """`drain_s`: how long messages are in flight still when a queue is released."""

    def __init__(
        self,
        member: str,
        timeline: Timeline,
        counts: dict[str, int],
        *,
        drain_s: float = 0.0,
        switches: bool = False,
    ) -> None:
        self.member, self.timeline, self.counts, self.drain_s = member, timeline, counts, drain_s
        self.switches = switches
        self.hand_overs = HandOvers()
        self.stands_by = False
        self.failures = 0
        """Calls of `take` that will fail."""
        self._hurry: dict[Queue, asyncio.Event] = {}
        self.open: dict[Queue, int] = {}

    async def queues(self, topics: Mapping[str, int | None]) -> dict[str, list[int]]:
        return {topic: list(range(self.counts[topic])) for topic in topics}

    async def take(self, queue: Queue, generation: int) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the broker refuses")
        self.timeline.take(self.member, queue)
        self.open[queue] = generation

    async def release(self, queue: Queue, deadline_s: float) -> bool:
        if queue not in self.open:
            return True
        if queue in self._hurry:
            if deadline_s < self.drain_s:
                self._hurry[queue].set()
            return False
        hurry = self._hurry[queue] = asyncio.Event()
        clean = self.drain_s <= deadline_s
        try:
            async with asyncio.timeout(min(deadline_s, self.drain_s)):
                await hurry.wait()
                clean = False
        except TimeoutError:
            pass
        del self._hurry[queue]
        del self.open[queue]
        self.timeline.release(self.member, queue)
        self.hand_overs = HandOvers(self.hand_overs.clean + clean, self.hand_overs.forced + (not clean))
        return clean

    async def pass_on(self, queue: Queue, deadline_s: float) -> bool:
        return await self.release(queue, deadline_s)

    async def stand_by(self) -> None:
        self.stands_by = True

    async def release_all(self, deadline_s: float) -> None:
        for queue in list(self.open):
            await self.release(queue, deadline_s)

    def loads(self) -> Mapping[Queue, QueueLoad]:
        return {queue: QueueLoad(residence_p99_s=1.0) for queue in self.open}

    async def close(self) -> None:
        for queue in list(self.open):
            del self.open[queue]
            self.timeline.release(self.member, queue)
