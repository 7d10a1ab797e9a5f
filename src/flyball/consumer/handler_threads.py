"""Threads for handlers that block: a fixed number, and none of them prevents the program from ending.

The standard pool waits at exit for every thread, so one handler that hangs would hang the whole program; these
threads are daemons. A thread that is lost to a hung handler is replaced when the handler's time limit is over, so
the number of free threads stays the same; the lost one ends when its handler returns.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

from flyball.errors import InvalidValue
from flyball.futures import answer, outcome_of


class _Job:
    """A call for a thread; `began` and `abandoned` (its time limit is over) change under the pool's lock."""

    __slots__ = ("abandoned", "arguments", "began", "function", "future")

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], future: asyncio.Future[Any]
    ) -> None:
        self.function, self.arguments, self.future = function, arguments, future
        self.began = self.abandoned = False


class HandlerThreads:
    """At most `threads` calls run at a time; the others wait in order."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise InvalidValue(f"threads must be >= 1, got {threads}")
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = threads
        self._lock = threading.Lock()
        for _ in range(threads):
            self._start()

    def _start(self) -> None:
        threading.Thread(target=self._work, name="flyball-handler", daemon=True).start()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        job = _Job(function, arguments, future)
        self._jobs.put(job)
        try:
            return await future
        finally:
            if future.cancelled():
                self._abandon(job)

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            job.abandoned = True
            lost = job.began
        if lost:
            self._start()  # replaces the thread that is still busy with it

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not self._begin(job):
                continue
            outcome = outcome_of(job.function, *job.arguments)
            if not self._end(job):
                return  # another thread has replaced this one
            answer([job.future], [outcome])

    def _begin(self, job: _Job) -> bool:
        with self._lock:
            job.began = not job.abandoned
            return job.began

    def _end(self, job: _Job) -> bool:
        with self._lock:
            job.began = False
            return not job.abandoned
