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
        self._standing_by: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    @property
    def owned(self) -> dict[Queue, int]:
        """With their generations; from before the first message is taken until after the last one is settled."""
        return dict(self._owned)

    def follow(self, granted: Mapping[Queue, int]) -> None:
        """Begin to take what was granted and to pass on what was not; it goes on in the background."""
        if self._readers.switches and (self._standing_by is None or self._standing_by.done()):
            self._standing_by = asyncio.create_task(self._stand_by())
        self._granted = dict(granted)
        for queue in self._granted.keys() | self._owned.keys():
            if queue not in self._tasks and self._granted.get(queue) != self._owned.get(queue):
                task = self._tasks[queue] = asyncio.create_task(self._pursue(queue))
                task.add_done_callback(partial(self._forget, queue))

    def leave(self) -> bool:
        """Begin to release everything, also what is only subscribed to; True when that is done."""
        if not self._readers.switches:
            self.follow({})
            return not self._owned
        if self._leaving is None:
            self._granted = {}
            self._leaving = asyncio.create_task(self._leave())
        return self._leaving.done()

    async def _leave(self) -> None:
        for task in (*self._tasks.values(), *([self._standing_by] if self._standing_by is not None else [])):
            task.cancel()
        await asyncio.gather(*(self._release(queue) for queue in self._owned))
        try:
            await self._readers.release_all(self._release_timeout_s)
        except Exception as error:  # noqa: BLE001 - a broker that is gone has taken its messages back
            log.warning("queues were not released cleanly: %s", error)
        self._changed()

    async def release_all(self, deadline_s: float | None = None) -> None:
        """Release everything and wait for it; `deadline_s`: at most so long, also for releases under way."""
        self.follow({})
        if self._readers.switches:
            return  # nobody can read beside this member: there is no hurry
        if deadline_s is not None:
            # Those that wait for a longer time already are given the earlier deadline.
            await asyncio.gather(
                *(self._readers.release(queue, deadline_s) for queue in list(self._owned)), return_exceptions=True
            )
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Give up what is under way, and close the readers."""
        others = [task for task in (self._standing_by, self._leaving) if task is not None]
        tasks = [*self._tasks.values(), *others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._owned.clear()
        await self._readers.close()

    async def _pursue(self, queue: Queue) -> None:
        delays = delays_s(ENDLESS)
        while (granted := self._granted.get(queue)) != self._owned.get(queue):
            if granted is None:
                await self._release(queue, pass_on=True)
                continue
            before = self._owned.get(queue)
            self._owned[queue] = granted
            try:
                await self._readers.take(queue, granted)
            except Exception as error:  # noqa: BLE001 - the broker may be back soon; the queue stays ours
                log.warning("queue %s.%d cannot be read, another attempt follows: %s", *queue, error)
                if before is None:
                    self._owned.pop(queue, None)
                else:
                    self._owned[queue] = before
                await asyncio.sleep(next(delays))
            self._changed()

    async def _release(self, queue: Queue, *, pass_on: bool = False) -> None:
        load = self._readers.loads().get(queue)
        deadline_s = release_deadline_s(load, self._window(), self._release_timeout_s)
        try:
            await (self._readers.pass_on if pass_on else self._readers.release)(queue, deadline_s)
        except Exception as error:  # noqa: BLE001 - a broker that is gone has taken its messages back
            log.warning("queue %s.%d was not released cleanly: %s", *queue, error)
        self._owned.pop(queue, None)
        self._changed()

    def _forget(self, queue: Queue, _: asyncio.Task[None]) -> None:
        del self._tasks[queue]

    async def _stand_by(self) -> None:
        try:
            await self._readers.stand_by()
        except Exception as error:  # noqa: BLE001 - the broker may be back soon, and reads go on meanwhile
            log.warning("the queues of others cannot be subscribed to, another attempt follows: %s", error)
