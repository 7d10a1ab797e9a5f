"""Queues that are being released: each once, by a deadline that may come nearer; and how many were clean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers


@dataclass(eq=False, slots=True)
class Release:
    """One release; `deadline_s` on the monotonic clock."""

    deadline_s: float
    task: asyncio.Task[bool] | None = None


class Releases:
    """Runs releases; `wake` is called when a deadline has changed."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._under_way: dict[Queue, Release] = {}
        self.hand_overs = HandOvers()

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._under_way

    def count(self, *, clean: bool) -> None:
        before = self.hand_overs
        self.hand_overs = HandOvers(before.clean + clean, before.forced + (not clean))

    async def run(self, queue: Queue, deadline_s: float, carry_out: Callable[[Release], Awaitable[bool]]) -> bool:
        """Release a queue; if that is under way, only hurry. Whether it was clean."""
        end_s = time.monotonic() + deadline_s
        release = self._under_way.get(queue)
        if release is None:
            release = self._under_way[queue] = Release(end_s)
            release.task = asyncio.create_task(self._run(queue, release, carry_out))
        elif end_s < release.deadline_s:
            release.deadline_s = end_s
            self._wake()
        assert release.task is not None
        return await asyncio.shield(release.task)

    async def _run(self, queue: Queue, release: Release, carry_out: Callable[[Release], Awaitable[bool]]) -> bool:
        try:
            clean = await carry_out(release)
            self.count(clean=clean)
            return clean
        finally:
            del self._under_way[queue]

    async def cancel(self) -> None:
        """End all releases at once."""
        tasks = [release.task for release in self._under_way.values() if release.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
