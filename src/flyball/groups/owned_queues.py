"""The queues of a member: brings what its readers read to what it was granted, each queue by itself.

A queue that is not affected by a change is not touched. A queue that drains delays no other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from flyball.backoff import ENDLESS, delays_s
from flyball.groups.policy.group import Queue
from flyball.groups.policy.hand_over import release_deadline_s
from flyball.groups.readers.port import QueueReaders

log = logging.getLogger("flyball.groups")


class OwnedQueues:
    """`changed` is called when a queue was released or is about to be taken: the member should report it."""

    def __init__(
        self,
        readers: QueueReaders,
        *,
        window: Callable[[], int],
        release_timeout_s: float,
        changed: Callable[[], None],
    ) -> None:
        self._readers, self._window, self._changed = readers, window, changed
        self._release_timeout_s = release_timeout_s
        self._granted: dict[Queue, int] = {}
        self._owned: dict[Queue, int] = {}
        self._tasks: dict[Queue, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._followed: dict[Queue, int] | None = None

    @property
    def owned(self) -> dict[Queue, int]:
        """With their generations; from before the first message is taken until after the last one is settled."""
        return dict(self._owned)

    def follow(self, granted: Mapping[Queue, int]) -> None:
        """Begin to take what was granted and to release what was not; it goes on in the background."""
        if self._readers.switches:
            self._switch(granted)
            return
        self._granted = dict(granted)
        for queue in self._granted.keys() | self._owned.keys():
            if queue not in self._tasks and self._granted.get(queue) != self._owned.get(queue):
                task = self._tasks[queue] = asyncio.create_task(self._pursue(queue))
                task.add_done_callback(partial(self._forget, queue))

    async def release_all(self, deadline_s: float | None = None) -> None:
        """Release everything and wait for it; `deadline_s`: at most so long, also for releases under way."""
        if self._readers.switches:
            self._owned.clear()  # the broker hands over when the consumers close
            return
        self.follow({})
        if deadline_s is not None:
            # Those that wait for a longer time already are given the earlier deadline.
            await asyncio.gather(
                *(self._readers.release(queue, deadline_s) for queue in list(self._owned)), return_exceptions=True
            )
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Give up what is under way, and close the readers."""
        tasks = [*self._tasks.values(), *([self._following] if self._following is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._owned.clear()
        await self._readers.close()

    async def _pursue(self, queue: Queue) -> None:
        delays = delays_s(ENDLESS)
        while (granted := self._granted.get(queue)) != self._owned.get(queue):
            if granted is None:
                load = self._readers.loads().get(queue)
                deadline_s = release_deadline_s(load, self._window(), self._release_timeout_s)
                try:
                    await self._readers.release(queue, deadline_s)
                except Exception as error:  # noqa: BLE001 - a broker that is gone has taken its messages back
                    log.warning("queue %s.%d was not released cleanly: %s", *queue, error)
                del self._owned[queue]
                self._changed()
                continue
            before = self._owned.get(queue)
            self._owned[queue] = granted
            try:
                await self._readers.take(queue, granted)
            except Exception as error:  # noqa: BLE001 - the broker may be back soon; the queue stays ours
                log.warning("queue %s.%d cannot be read, another attempt follows: %s", *queue, error)
                if before is None:
                    del self._owned[queue]
                else:
                    self._owned[queue] = before
                await asyncio.sleep(next(delays))
            self._changed()

    def _forget(self, queue: Queue, _: asyncio.Task[None]) -> None:
        del self._tasks[queue]

    def _switch(self, granted: Mapping[Queue, int]) -> None:
        self._granted = dict(granted)
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow_newest())

    async def _follow_newest(self) -> None:
        delays = delays_s(ENDLESS)
        while self._followed != self._granted:
            granted = dict(self._granted)
            try:
                await self._readers.follow(granted)
                self._followed, self._owned = granted, dict(granted)
            except Exception as error:  # noqa: BLE001 - the broker may be back soon, and reads go on meanwhile
                log.warning("priorities cannot be set, another attempt follows: %s", error)
                await asyncio.sleep(next(delays))
            self._changed()
