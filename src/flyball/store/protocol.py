"""What the store asks of a database, and what can go wrong.

The concerns of this room (outbox, leases, documents, loop state) speak SQL that SQLite and PostgreSQL share,
through the two small protocols below; another database is one more file that offers them and its own tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from flyball.errors import FlyballError
from flyball.store.host_time import HostTime

Result = TypeVar("Result")


class Rows(Protocol):
    """What a statement brought back."""

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

        Works of several threads may share one commit, so `work` must leave nothing behind but its statements:
        it is run again when a commit it shared has failed. `durable` False: the commit survives the end of the
        process at once and a power loss only after the next durable one.
        """

    def read(self, work: Callable[[Transaction], Result]) -> Result:
        """Run `work` on one consistent state; writers go on meanwhile."""

    def time(self) -> HostTime:
        """The clock that every process using this database agrees on."""


class StateStore(Protocol):
    """Keeps what a loop needs to go on where it stopped: any value that JSON can carry, by the loop's name."""

    def save(self, loop_name: str, state: Any) -> None: ...

    def load(self, loop_name: str) -> Any | None: ...


class StoreError(FlyballError):
    """Base of what can go wrong with the store."""


class Full(StoreError, OSError):
    """There is no room: the bound that was set, or the disk. Whatever was accepted before is kept."""


class NeverFits(Full):
    """The message is larger than the bound: waiting does not help."""


class DiskFull(Full):
    """The disk has no room left: waiting for confirms may not help."""


class Busy(StoreError, TimeoutError):
    """Another process held the database for longer than we wait."""


class Fenced(StoreError, PermissionError):
    """A write came from somebody who no longer holds the lease; nothing was written."""


class Conflict(StoreError, RuntimeError):
    """A document changed since it was read; nothing was written."""


class NewerSchema(StoreError, RuntimeError):
    """The database was written by a newer Flyball than this one."""
