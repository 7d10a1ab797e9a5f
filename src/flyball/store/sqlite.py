"""The store in one SQLite file, shared by the processes of a host.

Write-ahead log, so that readers and the writer do not wait for each other; `synchronous=FULL`, so that a commit
survives power loss (durability "power"), or NORMAL, so that it survives the end of the process but perhaps not a
power loss (durability "process").

SQLite allows one writer at a time among all processes. Each write transaction therefore begins with the lock
(BEGIN IMMEDIATE): to lock in the middle could fail after part of the work was done on an outdated state. Threads
of this process that write at the same time share one transaction (`_GroupCommit`).
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast
from urllib.parse import quote

from flyball.errors import InvalidValue
from flyball.paths import create_private
from flyball.store import schema
from flyball.store.host_time import HostTime, host_time
from flyball.store.named_file import NamedFile
from flyball.store.process_check import ProcessCheck
from flyball.store.protocol import Busy, DiskFull, StoreError, Transaction
from flyball.write_ahead_log import use_write_ahead_log

Result = TypeVar("Result")
Durability = Literal["power", "process"]

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}
# Bounds how long a transaction excludes the writers of other processes.
_MAX_BATCH = 256


class SqliteDatabase:
    """A database file, opened by this process; see `protocol.Database`.

    `durability` is what a durable write survives: "power" (loss) or only the end of the "process".
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "power",
        busy_s: float = 10.0,
        clock: Callable[[], HostTime] = host_time,
        migrations: Sequence[Sequence[str]] = schema.MIGRATIONS,
    ) -> None:
        if durability not in _SYNCHRONOUS:
            raise InvalidValue(f"durability must be 'power' or 'process', got {durability!r}")
        if str(path) in ("", ":memory:"):
            raise InvalidValue(
                f"path must be the path of a file, got {str(path)!r}: the store must survive the process"
            )
        self.path = Path(path)
        self.time = clock
        self._busy_s = busy_s
        self._process = ProcessCheck(str(self.path))
        self._durable_now: bool | None = None
        self._full = _SYNCHRONOUS[durability]
        create_private(self.path)
        self._reading = threading.Lock()
        self._commits = _GroupCommit(self._run_together)
        with ExitStack() as opened:
            try:
                self._writer = self._connect()
                opened.callback(self._writer.close)
                self._reader = self._connect()
                opened.callback(self._reader.close)
            except sqlite3.Error as error:
                raise self._explained(error) from error
            self._named_file = NamedFile(self.path)
            if self.read(schema.version_of) != len(migrations):
                self.write(lambda transaction: schema.migrate(transaction, str(self.path), migrations))
            opened.pop_all()

    def write(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
        self._process.check()
        if durable:
            self._named_file.check()
        return self._commits.submit(work, durable)

    def read(self, work: Callable[[Transaction], Result]) -> Result:
        self._process.check()
        with self._reading:
            try:
                self._reader.execute("BEGIN")
                try:
                    return work(self._reader)
                finally:
                    self._reader.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def close(self) -> None:
        def close_both() -> None:
            with self._reading:
                self._reader.close()
            self._writer.close()

        self._commits.exclusively(close_both)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            use_write_ahead_log(connection, self._busy_s)
        except sqlite3.Error:
            connection.close()
            raise
        connection.execute(f"PRAGMA synchronous = {self._full}")
        return connection

    def _run_together(self, jobs: Sequence[_Job]) -> None:
        """Run all jobs in one transaction; if it fails as a whole, each in its own."""
        try:
            self._transact(jobs)
        except sqlite3.Error as error:
            if len(jobs) > 1:
                for job in jobs:
                    job.error = None
                    self._run_together([job])
            else:
                jobs[0].error, jobs[0].done = self._explained(error), True
        for job in jobs:
            job.done = True

    def _transact(self, jobs: Sequence[_Job]) -> None:
        self._set_durable(any(job.durable for job in jobs))
        connection = self._writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                connection.execute("SAVEPOINT job")
                try:
                    job.result = job.work(connection)
                except sqlite3.OperationalError:
                    raise
                except Exception as error:  # noqa: BLE001 - it belongs to the caller of this one job
                    job.error = self._explained(error) if isinstance(error, sqlite3.Error) else error
                    connection.execute("ROLLBACK TO job")
                connection.execute("RELEASE job")
            connection.execute("COMMIT")
        except BaseException:
            # A full disk may have ended the transaction already.
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def _set_durable(self, durable: bool) -> None:
        if durable != self._durable_now:
            self._writer.execute(f"PRAGMA synchronous = {self._full if durable else 'NORMAL'}")
            self._durable_now = durable

    def _explained(self, error: sqlite3.Error) -> StoreError:
        code = _code(error)
        if code == sqlite3.SQLITE_FULL:
            return DiskFull(
                f"disk full: cannot write {self.path} ({error}); free some space; accepted messages are safe"
            )
        if code in _BUSY:
            return Busy(
                f"{self.path} was locked by another process for more than {self._busy_s:g} s; "
                "shorten that transaction, then try again"
            )
        if code == sqlite3.SQLITE_CANTOPEN:
            return StoreError(f"cannot open {self.path}; check that its folder exists and is writable")
        if code == sqlite3.SQLITE_NOTADB:
            return StoreError(f"{self.path} is not a SQLite database; choose another file")
        return StoreError(f"{self.path}: {error}")


def is_database(path: Path) -> bool:
    """Whether a file is a SQLite database, or empty; also True if that cannot be found out now.

    SQLite itself is asked: to open and close a file beside it releases the locks that this process has on it.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=0.0)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        return _code(error) != sqlite3.SQLITE_NOTADB
    return True


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None for what Python's module raises by itself (a closed connection)."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


class _Job:
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


class _GroupCommit:
    """The jobs of many threads share one commit, and so one wait for the disk.

    A commit that is safe against power loss costs an fsync, milliseconds on many disks, for one message as for a
    thousand. There is no extra thread: the first caller becomes the leader and runs its own job at once, together
    with all queued jobs; the others wait. Then the first waiting caller becomes the leader and runs all jobs that
    came meanwhile. So a single caller never waits for others, and under load many share one commit.

    `run_together(jobs)` runs jobs in one transaction and marks each done, with its result or its error.
    """

    def __init__(self, run_together: Callable[[Sequence[_Job]], None]) -> None:
        self._run_together = run_together
        self._queue: deque[_Job] = deque()
        self._busy = False
        self._changed = threading.Condition()

    def submit(self, work: Callable[..., Result], durable: bool) -> Result:
        job = _Job(work, durable)
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

    def _wait(self, job: _Job) -> None:
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
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_BATCH))]
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
