"""Leases, members and documents in a PostgreSQL database, shared by hosts.

It holds what several hosts must agree on. Accepted messages (the outbox) stay in a file of the host that accepted
them: they must survive when the network does not.

One writer at a time, as in SQLite: each write transaction begins with an advisory lock, so the same statements are
correct on both. A call waits `answer_timeout_s` for other writers, and ends after twice that time also when the
server or the network stands still; the connection is then given up, and the next call makes a new one. The server
ends the transaction of a writer that is silent for half of that time: a process that was paused locks nobody out.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Self, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from flyball.errors import InvalidValue
from flyball.store import schema
from flyball.store.host_time import HostTime
from flyball.store.process_check import ProcessCheck
from flyball.store.protocol import Busy, StoreError, Transaction

Result = TypeVar("Result")
Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

# As in schema.py: an entry leads from its number to the next version, and a released one is never edited.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE flyball_lease (
            name TEXT PRIMARY KEY,
            holder TEXT,
            token BIGINT NOT NULL,
            boot TEXT NOT NULL,
            until_s DOUBLE PRECISION NOT NULL,
            ttl_s DOUBLE PRECISION NOT NULL
        )""",
        """CREATE TABLE flyball_candidate (
            lease TEXT NOT NULL,
            id TEXT NOT NULL,
            boot TEXT NOT NULL,
            until_s DOUBLE PRECISION NOT NULL,
            ttl_s DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (lease, id)
        )""",
        """CREATE TABLE flyball_document (
            space TEXT NOT NULL,
            key TEXT NOT NULL,
            version BIGINT NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (space, key)
        )""",
        "CREATE TABLE flyball_document_version (one INTEGER PRIMARY KEY CHECK (one = 1), last BIGINT NOT NULL)",
        "INSERT INTO flyball_document_version VALUES (1, 0)",
        "CREATE TABLE flyball_loop_state (name TEXT PRIMARY KEY, state TEXT NOT NULL)",
    ),
    (
        """CREATE TABLE flyball_session (
            space TEXT NOT NULL,
            member TEXT NOT NULL,
            token BIGINT NOT NULL,
            boot TEXT NOT NULL,
            until_s DOUBLE PRECISION NOT NULL,
            ttl_s DOUBLE PRECISION NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (space, member, token)
        )""",
        "CREATE TABLE flyball_generation (scope TEXT PRIMARY KEY, generation BIGINT NOT NULL)",
    ),
)
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('flyball store ' || current_schema(), 0))"
_CONNECTION_LOST = (errors.OperationalError, errors.InterfaceError)


class PostgresqlDatabase:
    """A database, used by this process; see `protocol.Database`. Its user must be allowed to create tables."""

    def __init__(self, url: str, *, answer_timeout_s: float = 10.0, create: bool = True) -> None:
        try:
            parsed = conninfo_to_dict(url)
        except errors.ProgrammingError as error:
            raise InvalidValue(f"invalid store URL: {_line(error)}") from None
        self._where = f"PostgreSQL at {parsed.get('host', 'localhost')}:{parsed.get('port', 5432)}"
        self._url, self._timeout_s = url, answer_timeout_s
        self._process = ProcessCheck(self._where)
        self._writer, self._reader = _Link(self._connect), _Link(self._connect)
        if not create and self.read(_find_version) == 0:
            self.close()
            raise InvalidValue(f"{self._where} has no tables of Flyball: name the store of a group or cluster")
        self.write(lambda transaction: schema.migrate(transaction, self._where, MIGRATIONS, _find_version))

    def write(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
        def locked(statements: _Statements) -> Result:
            if not durable:
                statements.execute("SET LOCAL synchronous_commit = off")
            statements.execute(_LOCK)
            return work(statements)

        return self._run(self._writer, "BEGIN", locked)

    def read(self, work: Callable[[Transaction], Result]) -> Result:
        return self._run(self._reader, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", work)

    def time(self) -> HostTime:
        """The server's clock. If it is set forward, leases end early; fencing tokens protect what is written."""
        row = self.read(lambda t: t.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())").fetchone())
        return HostTime("postgresql", float(row[0]))

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, link: _Link, begin: str, work: Callable[[_Statements], Result]) -> Result:
        self._process.check()
        try:
            with link.lock, link.limit(self._timeout_s):
                try:
                    return self._transact(link, begin, work)
                except _CONNECTION_LOST as error:
                    if not link.was_idle or isinstance(error, errors.LockNotAvailable | _Committing):
                        raise
                    # The server ended an idle connection, perhaps when it restarted: nothing was done on it yet.
                    link.give_up()
                    return self._transact(link, begin, work)
        except errors.LockNotAvailable:
            raise Busy(
                f"{self._where} was locked by another writer for more than {self._timeout_s:g} s; "
                "shorten that transaction, then try again"
            ) from None
        except _Committing as error:
            raise StoreError(
                f"{self._where} was lost during a commit ({_line(error)}): it is unknown whether it was written; "
                "read again before repeating"
            ) from error
        except errors.Error as error:
            raise StoreError(f"{self._where}: {_line(error)}") from error

    def _transact(self, link: _Link, begin: str, work: Callable[[_Statements], Result]) -> Result:
        connection = link.connection()
        try:
            connection.execute(begin)
            link.was_idle = False
            result = work(_Statements(connection))
        except BaseException as error:
            with suppress(errors.Error):
                connection.execute("ROLLBACK")
            if isinstance(error, _CONNECTION_LOST) and not isinstance(error, errors.LockNotAvailable):
                link.give_up()
            raise
        try:
            connection.execute("COMMIT")
        except _CONNECTION_LOST as error:
            link.give_up()
            raise _Committing(str(error)) from error
        return result

    def _connect(self) -> Connection:
        milliseconds = max(1, int(1000 * self._timeout_s))
        return psycopg.connect(
            self._url,
            autocommit=True,  # transactions are written out, since they begin in different ways
            connect_timeout=max(2, int(self._timeout_s)),
            # A writer that is paused in the middle of a transaction must not lock out all others.
            options=f"-c lock_timeout={milliseconds} "
            f"-c idle_in_transaction_session_timeout={max(1, milliseconds // 2)}",
            application_name="flyball",
        )


class _Committing(errors.OperationalError):
    """The connection was lost after COMMIT was sent."""


class _Statements:
    """Statements with question marks, as the store writes them, on a connection of psycopg."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        return self._connection.execute(_percent_signs(sql), tuple(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any:
        cursor = self._connection.cursor()
        cursor.executemany(_percent_signs(sql), [tuple(row) for row in parameters])
        return cursor


class _Link:
    """A connection that is made when it is needed, used by one thread at a time."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self.lock = threading.Lock()
        self.was_idle = False
        """Whether the connection was made for an earlier call, and nothing has worked on it in this one."""

    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
            self.was_idle = False
        return self._connection

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """End what this thread waits for after that time: a server that stands still enforces no limits itself."""
        self.was_idle = self._connection is not None
        watch = threading.Timer(2 * seconds, self._shut_down)
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def give_up(self) -> None:
        if self._connection is not None:
            with suppress(errors.Error):
                self._connection.close()
            self._connection = None

    def close(self) -> None:
        with self.lock:
            self.give_up()

    def _shut_down(self) -> None:
        # Closing it would free memory that the waiting thread uses; after a shutdown that thread sees its end.
        connection = self._connection
        if connection is None:
            return
        with suppress(errors.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


def _find_version(transaction: Transaction) -> int:
    if transaction.execute("SELECT to_regclass('flyball_schema')").fetchone()[0] is None:
        return 0
    return int(transaction.execute("SELECT version FROM flyball_schema").fetchone()[0])


@lru_cache(maxsize=256)
def _percent_signs(sql: str) -> bytes:
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _line(error: BaseException) -> str:
    """The message of the server or the driver in one line; neither contains the password."""
    return " ".join(str(error).split()) or type(error).__name__
