"""A real member of a group as a process, which writes down when it takes and releases queues.

    python -m flyball.lab.rigs.groups.member_process LOG CONFIG

CONFIG is a `GroupConfig` as JSON. A line of the log is a time of the monotonic clock, + or -, and the number of a
queue.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from flyball.groups.client_member import ClientMember
from flyball.groups.config import GroupConfig
from flyball.groups.member import GroupMember
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers, QueueLoad


class RecordingReaders:
    """Reads nothing; see `port.QueueReaders`. `drain_s`: how long what is in flight takes."""

    switches = False
    hand_overs = HandOvers()

    def __init__(self, log: TextIO, drain_s: float = 0.05) -> None:
        self._log, self._drain_s = log, drain_s
        self._open: set[Queue] = set()

    async def queues(self, topics: Mapping[str, int | None]) -> dict[str, list[int]]:
        return {topic: list(range(count or 0)) for topic, count in topics.items()}

    async def take(self, queue: Queue, generation: int) -> None:  # noqa: ARG002
        if queue not in self._open:
            self._open.add(queue)
            self._write("+", queue)

    async def release(self, queue: Queue, deadline_s: float) -> bool:
        if queue not in self._open:
            return True
        await asyncio.sleep(min(self._drain_s, deadline_s))
        if queue in self._open:
            self._open.remove(queue)
            self._write("-", queue)
        return deadline_s >= self._drain_s

    async def pass_on(self, queue: Queue, deadline_s: float) -> bool:
        return await self.release(queue, deadline_s)

    async def stand_by(self) -> None:
        """Nothing is handed over by itself."""

    async def release_all(self, deadline_s: float) -> None:
        await asyncio.gather(*(self.release(queue, deadline_s) for queue in list(self._open)))

    def loads(self) -> Mapping[Queue, QueueLoad]:
        return {}

    async def close(self) -> None:
        await self.release_all(0.0)

    def _write(self, sign: str, queue: Queue) -> None:
        self._log.write(f"{time.monotonic():.4f} {sign} {queue[1]}\n")
        self._log.flush()


async def run(path: str, config: GroupConfig) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Path(path).open("a", encoding="utf-8") as log:
        kind = ClientMember if config.mode == "client" else GroupMember
        async with kind(config, RecordingReaders(log)):
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], GroupConfig(**json.loads(sys.argv[2]))))
