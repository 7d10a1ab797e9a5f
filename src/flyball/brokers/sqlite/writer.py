"""One thread that does all writing to one SQLite file, sharing commits.

All jobs that arrive while a commit is being written to the disk go into the next transaction together: one
fsync for many callers (group commit). A job is a function of the connection. If a transaction fails, its jobs are
done again one by one, so that each caller gets its own failure only.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from flyball.backoff import delays_s
from flyball.brokers.port import Blocked, Unreachable
from flyball.brokers.sqlite.schema import to_broker_error
from flyball.futures import answer

Result = TypeVar("Result")
Job = Callable[[sqlite3.Connection], Any]
_MAX_JOBS = 256  # jobs in one transaction, so that none waits long


class Writer:
    """`durable` jobs are on the disk when they are done; others after the next durable one, or soon.

    `maintenance` is called every `maintenance_s` in the thread, in a transaction of its own (leases, retention).
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        *,
        busy_timeout_s: float,
        power_safe: bool,
        maintenance: Job,
        maintenance_s: float,
    ) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._power_safe = power_safe
        self._maintenance, self._maintenance_s = maintenance, maintenance_s
        self._jobs: deque[tuple[Job, bool, asyncio.Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._connection.execute("PRAGMA busy_timeout=0")  # waiting is done in _begin, in shorter steps
        self._thread = threading.Thread(target=self._work, name=f"flyball-sqlite {path.name}", daemon=True)
        self.commits = 0
        self._thread.start()

    async def do(self, job: Callable[[sqlite3.Connection], Result], *, durable: bool) -> Result:
        future: asyncio.Future[Result] = self._loop.create_future()
        with self._changed:
            if self._closing:
                raise Unreachable(f"this connection to {self._path} was closed: connect again")
            self._jobs.append((job, durable, future))
            self._changed.notify()
        return await future

    async def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        next_maintenance_s = time.monotonic() + self._maintenance_s
        while True:
            with self._changed:
                if not self._jobs and not self._closing:
                    self._changed.wait(max(next_maintenance_s - time.monotonic(), 0.0))
                jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), _MAX_JOBS))]
                if not jobs and self._closing:
                    break
            if jobs:
                answer(
                    [future for _, _, future in jobs], self._run_jobs([(job, durable) for job, durable, _ in jobs])
                )
            if time.monotonic() >= next_maintenance_s:
                self._run_jobs([(self._maintenance, False)])  # what fails now is tried again next time
                next_maintenance_s = time.monotonic() + self._maintenance_s
        self._connection.close()

    def _run_jobs(self, jobs: list[tuple[Job, bool]]) -> list[Any]:
        """The result of each job, or the exception it ended with."""
        try:
            return self._transaction(jobs)
        except Exception as error:  # noqa: BLE001  whatever a job raises belongs to its caller, not to this thread
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):  # a broken disk: the next transaction will say so again
                    self._connection.execute("ROLLBACK")
            if len(jobs) == 1:
                return [to_broker_error(error, self._path) if isinstance(error, sqlite3.Error) else error]
            if isinstance(error, Blocked):  # the file is locked: it would be the same for each
                return [error] * len(jobs)
        return [result for job in jobs for result in self._run_jobs([job])]

    def _transaction(self, jobs: list[tuple[Job, bool]]) -> list[Any]:
        connection = self._connection
        full = self._power_safe and any(durable for _, durable in jobs)
        connection.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
        self._begin()
        results = [job(connection) for job, _ in jobs]
        connection.execute("COMMIT")
        self.commits += 1
        return results

    def _begin(self) -> None:
        # Short, jittered steps: SQLite's own waiting grows to 100 ms, and a busy file would starve this writer.
        deadline = time.monotonic() + self._busy_timeout_s
        attempts = max(1, int(self._busy_timeout_s / 0.005) + 16)
        for wait_s in delays_s(attempts, first_s=0.0002, longest_s=0.01):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() > deadline:
                    break
                time.sleep(wait_s)
            else:
                return
        raise Blocked(f"other processes kept {self._path} locked for {self._busy_timeout_s:g} s: try again")
