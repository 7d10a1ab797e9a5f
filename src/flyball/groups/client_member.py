"""A member in client mode: it computes its own queues, from views that it fetches from replicas.

Nobody grants anything (`policy.client_mode`). It is here to be compared with broker mode, as RocketMQ's clients
rebalance: members whose views differ read a queue together, or leave one to each other. The generation of a queue
is the time at which it was taken, so that positions in logs and fenced effects are those of the latest.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from flyball.errors import FlyballError
from flyball.groups.config import GroupConfig
from flyball.groups.owned_queues import OwnedQueues
from flyball.groups.policy.client_mode import choose_queues
from flyball.groups.policy.group import Queue
from flyball.groups.policy.state import Subscription
from flyball.groups.readers.port import QueueReaders
from flyball.groups.view_replicas import ViewReplicas
from flyball.store.protocol import Database, StoreError
from flyball.store.url import open_database
from flyball.store.worker_pool import WorkerPool

log = logging.getLogger("flyball.groups")

Result = TypeVar("Result")


class ClientMember:
    """See `member.GroupMember`, whose place it takes."""

    leads = False
    may_read = True
    """Nobody can tell it that it should not."""

    def __init__(
        self,
        config: GroupConfig,
        readers: QueueReaders,
        *,
        window: Callable[[], int] = lambda: 1,
        wall_clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.name = config.member or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._config, self._readers, self._wall_clock = config, readers, wall_clock
        self._rng = rng or random.Random()
        self._queues = OwnedQueues(
            readers, window=window, release_timeout_s=config.release_timeout_s, changed=lambda: None
        )
        self._granted: dict[Queue, int] = {}
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pool: WorkerPool | None = None
        self._database: Database | None = None
        self._unreachable = False

    @property
    def owned(self) -> dict[Queue, int]:
        """The queues that it reads, with their generations."""
        return self._queues.owned

    async def start(self) -> None:
        """Begin to send heartbeats; raises what the broker or the store says if they cannot be used."""
        views = self._config.views
        counts = await self._count_queues()
        self._pool = WorkerPool(1, user="group member")
        try:
            # A call that waits longer than this says nothing about the group any more.
            timeout_s = self._config.session_timeout_s / 2
            self._database = database = await self._call(
                lambda: open_database(self._config.store, answer_timeout_s=timeout_s)
            )
            self._replicas = ViewReplicas(
                database,
                self._config.name,
                count=views.replicas,
                lag_s=views.lag_s,
                loss=views.loss,
                rng=self._rng,
            )
            await self._heartbeat(counts)
        except BaseException:
            await self._close()
            raise
        self._task = asyncio.create_task(self._run(counts))

    async def wait(self) -> None:
        """Wait until the member has ended; raises an unexpected error."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self, *, leave: bool = True) -> None:  # noqa: ARG002  no queue waits for a member in client mode
        """Release all queues and say good-bye."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            while not self._queues.leave():
                await asyncio.sleep(0.01)
            with suppress(StoreError):
                await self._call(self._replicas.leave, self.name)
        await self._close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _run(self, counts: dict[str, int]) -> None:
        """Heartbeats; a rebalance at once, when there is news, and every `rebalance_s`."""
        rebalanced_s: float | None = None
        news = True
        while not self._stopping.is_set():
            try:
                news = await self._heartbeat(counts) or news
                now_s = time.monotonic()
                if news or rebalanced_s is None or now_s - rebalanced_s >= self._config.rebalance_s:
                    counts = await self._count_queues()
                    if await self._rebalance():
                        rebalanced_s, news = now_s, False
                self._unreachable = False
            except FlyballError as error:
                if not self._unreachable:
                    self._unreachable = True
                    log.warning("views of group %s cannot be used, reading goes on: %s", self._config.name, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.heartbeat_s):
                    await self._stopping.wait()

    async def _heartbeat(self, counts: dict[str, int]) -> bool:
        options = self._config.options
        mine = frozenset((topic, number) for topic, numbers in options.queues.items() for number in numbers)
        subscription = Subscription(frozenset(counts), self._config.rack, mine)
        timeout_s = self._config.session_timeout_s
        return await self._call(self._replicas.heartbeat, self.name, subscription, counts, timeout_s)

    async def _rebalance(self) -> bool:
        """Follow the view of one replica; False: it was not heard."""
        view = await self._call(self._replicas.fetch)
        if view is None:
            return False
        chosen = choose_queues(view, self.name, self._config.rules)
        generation = int(1000 * self._wall_clock())
        self._granted = {queue: self._granted.get(queue, generation) for queue in chosen}
        self._queues.follow(self._granted)
        return True

    async def _count_queues(self) -> dict[str, int]:
        found = await self._readers.queues(self._config.queue_counts)
        return {topic: 1 + max(numbers, default=-1) for topic, numbers in found.items()}

    async def _call(self, call: Callable[..., Result], *arguments: Any) -> Result:
        if self._pool is None:
            raise StoreError("the member is not in its group")
        return await self._pool.run("receive", call, *arguments)

    async def _close(self) -> None:
        await self._queues.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            if self._database is not None:
                await pool.run("receive", self._database.close)
            await asyncio.to_thread(pool.close)
