"""A member of a group as a process, with an effect for each message in a sink that all members share.

A queue is an endless sequence of numbers. Its position is in the sink, written together with the effect and the
check of the generation: what is applied twice or left out can be seen there, whoever was killed or paused.

    python -m tests.groups.member_process STORE SINK NAME QUEUES
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from flyball.groups.config import GroupConfig
from flyball.groups.member import GroupMember
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers, QueueLoad
from flyball.store import Fenced, GenerationFence, SqliteDatabase
from flyball.store.protocol import Transaction

GROUP = "shop"
HEARTBEAT_S = 0.25
SESSION_S = 3.0
_PAUSE_S = 0.05

TABLES = (
    "CREATE TABLE effect (number INTEGER, message INTEGER, member TEXT, generation INTEGER, time_s REAL)",
    "CREATE TABLE position (number INTEGER PRIMARY KEY, next INTEGER)",
)


class SinkReaders:
    """Reads queues by applying their messages to the sink, one after another."""

    switches = False

    def __init__(self, sink: SqliteDatabase, member: str, queues: int) -> None:
        self._sink, self._fence, self._member, self._queues = sink, GenerationFence(sink), member, queues
        self._tasks: dict[Queue, asyncio.Task[None]] = {}
        self._stopped: set[Queue] = set()
        self.hand_overs = HandOvers()

    async def queues(self, topics: Mapping[str, int | None]) -> dict[str, list[int]]:
        return {topic: list(range(self._queues)) for topic in topics}

    async def take(self, queue: Queue, generation: int) -> None:
        # From here on no earlier owner can write: only then the position is final.
        def position(transaction: Transaction) -> int:
            row = transaction.execute("SELECT next FROM position WHERE number = ?", (queue[1],)).fetchone()
            return 0 if row is None else int(row[0])

        first = await asyncio.to_thread(self._fence.apply, GROUP, queue, generation, position)
        self._tasks[queue] = asyncio.create_task(self._read(queue, generation, first))

    async def release(self, queue: Queue, deadline_s: float) -> bool:
        task = self._tasks.get(queue)
        if task is None:
            return True
        self._stopped.add(queue)
        done, _ = await asyncio.wait([task], timeout=deadline_s)
        task.cancel()
        self._tasks.pop(queue, None)
        self._stopped.discard(queue)
        self.hand_overs = HandOvers(self.hand_overs.clean + bool(done), self.hand_overs.forced + (not done))
        return bool(done)

    async def pass_on(self, queue: Queue, deadline_s: float) -> bool:
        return await self.release(queue, deadline_s)

    async def stand_by(self) -> None:
        raise NotImplementedError

    async def release_all(self, deadline_s: float) -> None:
        raise NotImplementedError

    def loads(self) -> Mapping[Queue, QueueLoad]:
        return {}

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def _read(self, queue: Queue, generation: int, message: int) -> None:
        while queue not in self._stopped:
            try:
                await asyncio.to_thread(self._apply, queue, generation, message)
            except Fenced:
                return  # another member has the queue
            message += 1
            await asyncio.sleep(_PAUSE_S)

    def _apply(self, queue: Queue, generation: int, message: int) -> None:
        def effect(transaction: Transaction) -> None:
            transaction.execute(
                "INSERT INTO effect VALUES (?, ?, ?, ?, ?)",
                (queue[1], message, self._member, generation, time.monotonic()),
            )
            transaction.execute(
                "INSERT INTO position VALUES (?, ?) ON CONFLICT (number) DO UPDATE SET next = excluded.next",
                (queue[1], message + 1),
            )

        self._fence.apply(GROUP, queue, generation, effect)


async def run(store: str, sink: str, name: str, queues: int) -> None:
    config = GroupConfig(
        name=GROUP,
        topics=["orders"],
        store=store,
        member=name,
        heartbeat_s=HEARTBEAT_S,
        session_timeout_s=SESSION_S,
        coalesce_s=HEARTBEAT_S,
        release_timeout_s=1.0,
    )
    with SqliteDatabase(sink, durability="process") as database:
        member = GroupMember(config, SinkReaders(database, name, queues))
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with member:
            with suppress(asyncio.CancelledError):
                await stop.wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
