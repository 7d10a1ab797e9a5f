"""The store in one SQLite file, shared by the processes of a host.

Write-ahead log, so that readers and the writer do not wait for each other; `synchronous=FULL`, so that a commit
survives power loss (durability "power"), or NORMAL, so that it survives the end of the process but perhaps not a
power loss (durability "process").

SQLite allows one writer at a time among all processes. Each write transaction therefore begins with the lock
(BEGIN IMMEDIATE): to lock in the middle could fail after part of the work was done on an outdated state.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from flyball.errors import InvalidValue
from flyball.store import schema
from flyball.store.group_commit import GroupCommit, Job
from flyball.store.host_time import HostTime, host_time
from flyball.store.protocol import Busy, DiskFull, StoreError, Transaction

Result = TypeVar("Result")
Durability = Literal["power", "process"]

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}


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
        self._process = os.getpid()
        self._durable_now: bool | None = None
        self._full = _SYNCHRONOUS[durability]
        try:
            self._writer = self._connect()
            self._reader = self._connect()
        except sqlite3.Error as error:
            raise self._explained(error) from error
        self._reading = threading.Lock()
        self._commits = GroupCommit(self._run_together)
        if self.read(schema.version_of) != len(migrations):
            self.write(lambda transaction: schema.migrate(transaction, str(self.path), migrations))

    def write(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
        self._check_process()
        return self._commits.submit(work, durable)

    def read(self, work: Callable[[Transaction], Result]) -> Result:
        self._check_process()
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
        # While another process changes the same file to WAL, SQLite answers "locked" at once instead of waiting.
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if _code(error) not in _BUSY or time.monotonic() > deadline:
                    connection.close()
                    raise
                time.sleep(0.01)
        connection.execute(f"PRAGMA synchronous = {self._full}")
        return connection

    def _run_together(self, jobs: Sequence[Job]) -> None:
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

    def _transact(self, jobs: Sequence[Job]) -> None:
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

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.path} was opened by process {self._process} and cannot be used by its child "
                f"{os.getpid()}; open it again after the fork"
            )

    def _explained(self, error: sqlite3.Error) -> StoreError:
        code = _code(error)
        if code == sqlite3.SQLITE_FULL:
            return DiskFull(
                f"disk full: cannot write {self.path} ({error}); free some space; accepted messages are safe"
            )
        if code in _BUSY:
            return Busy(
                f"{self.path} was locked by another process for more than {self._busy_s:g} s; "
                "shorten that transaction, or raise busy_s"
            )
        if code == sqlite3.SQLITE_CANTOPEN:
            return StoreError(f"cannot open {self.path}; check that its folder exists and is writable")
        if code == sqlite3.SQLITE_NOTADB:
            return StoreError(f"{self.path} is not a SQLite database; choose another file")
        return StoreError(f"{self.path}: {error}")


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None for what Python's module raises by itself (a closed connection)."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def plain_connection(connection: Any) -> Transaction:
    """Adapt the connection of an application's own transaction: sqlite3, or SQLAlchemy's connection or session.

    SQLAlchemy is not imported: its objects are recognised by the one method we use.
    """
    if isinstance(connection, sqlite3.Connection):
        return connection
    if hasattr(connection, "exec_driver_sql"):
        return _Driver(connection)
    if callable(getattr(connection, "connection", None)):  # Session
        return _Driver(connection.connection())
    raise InvalidValue(
        "connection must be a sqlite3 connection or a SQLAlchemy connection or session, got "
        f"{type(connection).__name__!r}"
    )


class _Driver:
    """A SQLAlchemy connection with the interface of the driver."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        return self._connection.exec_driver_sql(sql, tuple(parameters))

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        return self._connection.exec_driver_sql(sql, [tuple(row) for row in parameters])
