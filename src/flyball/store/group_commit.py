"""Lets the works of many threads share one commit, and so one wait for the disk.

A commit that is safe against power loss costs an fsync, milliseconds on many disks, whether it carries one
message or a thousand. There is no thread of its own: each caller queues its work and asks for the write lock.
Whoever gets the lock does everything that is queued by then; the others, once they get it, find theirs done.
So a lone caller waits for nobody, and the busier it is, the more share one commit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from flyball.store.protocol import StoreError

Result = TypeVar("Result")

# Bounds how long a transaction excludes the writers of other processes.
MOST_TOGETHER = 256


class Job:
    """One caller's work and what became of it."""

    __slots__ = ("done", "durable", "error", "result", "work")

    def __init__(self, work: Callable[..., Any], durable: bool) -> None:
        self.work = work
        self.durable = durable
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class GroupCommit:
    """`run_together(jobs)` runs jobs in one transaction and marks each done, with its result or its error."""

    def __init__(self, run_together: Callable[[Sequence[Job]], None]) -> None:
        self._run_together = run_together
        self._queue: deque[Job] = deque()
        self._turn = threading.Lock()

    def submit(self, work: Callable[..., Result], durable: bool) -> Result:
        job = Job(work, durable)
        self._queue.append(job)
        while True:
            with self._turn:
                if job.done:
                    break
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_TOGETHER))]
                try:
                    self._run_together(batch)
                except BaseException as error:
                    # This thread was interrupted (Ctrl-C); the others must not wait for ever, nor be told that
                    # theirs is stored.
                    for other in batch:
                        if not other.done:
                            other.error = StoreError(f"a shared commit was interrupted ({error!r}): write again")
                            other.done = True
                    raise
        if job.error is not None:
            raise job.error
        return cast(Result, job.result)

    def exclusively(self, act: Callable[[], Result]) -> Result:
        """Run something while no work runs (closing, for one)."""
        with self._turn:
            return act()
