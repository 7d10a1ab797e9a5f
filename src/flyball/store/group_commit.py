"""Group commit: the work of many threads shares one commit, and so one wait for the disk.

A commit that is safe against power loss costs an fsync, milliseconds on many disks, for one message as for a
thousand. There is no extra thread: the first caller becomes the leader and runs its own job at once, together with
all queued jobs; the others wait. Then the first waiting caller becomes the leader and runs all jobs that came
meanwhile. So a single caller never waits for others, and under load many share one commit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from flyball.store.protocol import StoreError

Result = TypeVar("Result")

# Bounds how long a transaction excludes the writers of other processes.
MAX_BATCH = 256


class Job:
    """One caller's work and its result."""

    __slots__ = ("called", "done", "durable", "error", "result", "work")

    def __init__(self, work: Callable[..., Any], durable: bool) -> None:
        self.work = work
        self.durable = durable
        self.called = threading.Event()
        """Set when it is done, or when its caller becomes the leader."""
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class GroupCommit:
    """`run_together(jobs)` runs jobs in one transaction and marks each done, with its result or its error."""

    def __init__(self, run_together: Callable[[Sequence[Job]], None]) -> None:
        self._run_together = run_together
        self._queue: deque[Job] = deque()
        self._busy = False
        self._changed = threading.Condition()

    def submit(self, work: Callable[..., Result], durable: bool) -> Result:
        job = Job(work, durable)
        with self._changed:
            self._queue.append(job)
            leads, self._busy = not self._busy, True
        if not leads:
            self._wait(job)
        if not job.done:
            self._lead()
        if job.error is not None:
            raise job.error
        return cast(Result, job.result)

    def exclusively(self, act: Callable[[], Result]) -> Result:
        """Run something, such as closing, while no job runs."""
        with self._changed:
            while self._busy:
                self._changed.wait()
            self._busy = True
        try:
            return act()
        finally:
            self._hand_over()

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._queue)

    def _wait(self, job: Job) -> None:
        try:
            job.called.wait()
        except BaseException:  # Ctrl-C: leave the queue, and pass the lead on
            with self._changed:
                appointed = job.called.is_set() and not job.done
                if job in self._queue:
                    self._queue.remove(job)
            if appointed:
                self._hand_over()
            raise

    def _lead(self) -> None:
        """Run all queued jobs. The leader is the first in the queue, so its own job is among them."""
        with self._changed:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
        try:
            self._run_together(batch)
        except BaseException as error:
            # This thread was interrupted (Ctrl-C); the others must not wait for ever, nor assume that theirs is
            # stored.
            for job in batch:
                if not job.done:
                    job.error = StoreError(f"a shared commit was interrupted ({error!r}); write again")
                    job.done = True
            raise
        finally:
            self._hand_over()
            for job in batch:
                job.called.set()

    def _hand_over(self) -> None:
        with self._changed:
            if self._queue:
                self._queue[0].called.set()
            else:
                self._busy = False
                self._changed.notify_all()
