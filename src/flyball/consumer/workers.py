"""Threads for handlers that block: a fixed number, and none of them keeps the program from ending.

The standard pool waits at exit for every thread, so one handler that hangs would hang the whole program; these
threads are daemons. A thread that is lost to a hung handler is replaced once the handler's time limit is over, so
the others keep their capacity; it ends by itself when the handler comes back.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from flyball.answers import answer, outcome_of
from flyball.errors import InvalidValue

Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]"]


class Workers:
    """At most `threads` calls run at a time; the others wait in order."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise InvalidValue(f"a pool has threads from 1, got {threads}")
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = threads
        self._lost = 0
        self._lock = threading.Lock()
        for _ in range(threads):
            self._start()

    def _start(self) -> None:
        threading.Thread(target=self._work, name="flyball-handler", daemon=True).start()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, arguments, future))
        return await future

    def replace_one(self) -> None:
        """A call is taking too long to be counted on: start a thread in its place."""
        with self._lock:
            self._lost += 1
        self._start()

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, arguments, future = job
            if future.cancelled():
                continue
            answer([future], [outcome_of(function, *arguments)])
            if future.cancelled() and self._was_lost():
                return  # another thread has taken this one's place

    def _was_lost(self) -> bool:
        with self._lock:
            if self._lost == 0:
                return False
            self._lost -= 1
            return True
