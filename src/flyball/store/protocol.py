"""The interface of a database, and the errors of the store.

The modules of this package (outbox, leases, documents, loop state) use SQL that SQLite and PostgreSQL share,
through the two small protocols below; another database is one more module that implements them and its own tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from flyball.errors import FlyballError
from flyball.store.host_time import HostTime

Result = TypeVar("Result")


class Rows(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Transaction(Protocol):
    """An open transaction; a plain `sqlite3.Connection` is one."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Rows: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Rows: ...


class Database(Protocol):
    """Runs work in transactions, from any thread."""

    def write(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
        """Run `work` in a transaction that excludes other writers, and return once it is committed.

        The work of several threads may share one commit, so `work` must have no effect but its statements: it is
        run again when a shared commit has failed. `durable` False: the commit survives the end of the process at
        once, and a power loss only after the next durable one.
        """

    def read(self, work: Callable[[Transaction], Result]) -> Result:
        """Run `work` on one consistent state; writers are not blocked."""

    def time(self) -> HostTime:
        """The clock that every process using this database agrees on."""

    def close(self) -> None: ...


class StateStore(Protocol):
    """Stores the state from which a loop continues after a restart: any JSON value, by the loop's name."""

    def save(self, loop_name: str, state: Any) -> None: ...

    def load(self, loop_name: str) -> Any | None: ...


class StoreError(FlyballError):
    """Base of all errors of the store."""


class Full(StoreError, OSError):
    """The limit of the outbox or the disk is reached. Messages accepted before are safe."""

    room_bytes = 0
    """What is left of the limit."""


class NeverFits(Full):
    """The message is larger than the bound: waiting does not help."""


class DiskFull(Full):
    """The disk is full: waiting for confirms may not help."""


class Busy(StoreError, TimeoutError):
    """Another process locked the database for longer than the timeout."""


class Fenced(StoreError, PermissionError):
    """The writer no longer has the lease; nothing was written."""


class Conflict(StoreError, RuntimeError):
    """A document changed since it was read; nothing was written."""


class NewerSchema(StoreError, RuntimeError):
    """The database was written by a newer Flyball than this one."""
