"""The tables of the SQLite broker, how a file is opened, and its errors as errors of the port.

Messages lie in *batches*: one row of figures in `broker_batches`, one value in `broker_payloads` (apart, because
SQLite rewrites a whole row when one of its figures changes). Queues and logs differ only in what removes batches:
acknowledgements, or retention.

An *outlet* is what messages are delivered to: a queue itself, or a group on a pattern. What waits at an outlet are
ranges of batches, in `broker_waiting`; a receiver's claim moves a range to `broker_claimed`, an acknowledgement
removes it, a return moves it back. So the cost of a claim or an acknowledgement depends on the number of ranges it
touches, never on how many messages are stored; totals are kept as counters, nothing is ever counted.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from flyball.brokers.port import Blocked, BrokerError, Unreachable
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue
from flyball.paths import create_private
from flyball.write_ahead_log import use_write_ahead_log

# One script a version: a file of version n is brought up to date by running those after n.
MIGRATIONS = (
    """
    CREATE TABLE broker_schema (version INTEGER NOT NULL);
    INSERT INTO broker_schema VALUES (0);
    CREATE TABLE broker_topology (changes INTEGER NOT NULL);
    INSERT INTO broker_topology VALUES (0);
    CREATE TABLE broker_channels (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
        partitions INTEGER NOT NULL, max_bytes INTEGER, retention_s REAL
    );
    CREATE TABLE broker_partitions (
        channel INTEGER NOT NULL, partition INTEGER NOT NULL,
        first_offset INTEGER NOT NULL, next_offset INTEGER NOT NULL, bytes INTEGER NOT NULL,
        PRIMARY KEY (channel, partition)
    ) WITHOUT ROWID;
    CREATE TABLE broker_producers (
        channel INTEGER NOT NULL, name TEXT NOT NULL, last_sequence INTEGER NOT NULL,
        PRIMARY KEY (channel, name)
    ) WITHOUT ROWID;
    CREATE TABLE broker_batches (
        id INTEGER PRIMARY KEY AUTOINCREMENT, channel INTEGER NOT NULL, partition INTEGER NOT NULL,
        first_offset INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
        stored_s REAL NOT NULL, owed INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX broker_batches_by_offset ON broker_batches (channel, partition, first_offset);
    CREATE TABLE broker_payloads (batch INTEGER PRIMARY KEY, data BLOB NOT NULL);
    CREATE TABLE broker_outlets (
        id INTEGER PRIMARY KEY AUTOINCREMENT, pattern TEXT NOT NULL, member_group TEXT,
        UNIQUE (pattern, member_group)
    );
    CREATE TABLE broker_backlogs (
        outlet INTEGER NOT NULL, channel INTEGER NOT NULL, waiting INTEGER NOT NULL, unsettled INTEGER NOT NULL,
        PRIMARY KEY (outlet, channel)
    ) WITHOUT ROWID;
    CREATE TABLE broker_waiting (
        outlet INTEGER NOT NULL, batch INTEGER NOT NULL, low INTEGER NOT NULL, high INTEGER NOT NULL,
        attempts INTEGER NOT NULL, PRIMARY KEY (outlet, batch, low)
    ) WITHOUT ROWID;
    CREATE TABLE broker_claimed (
        receiver INTEGER NOT NULL, batch INTEGER NOT NULL, low INTEGER NOT NULL, high INTEGER NOT NULL,
        attempts INTEGER NOT NULL, PRIMARY KEY (receiver, batch, low)
    ) WITHOUT ROWID;
    CREATE TABLE broker_receivers (
        id INTEGER PRIMARY KEY AUTOINCREMENT, outlet INTEGER NOT NULL, machine TEXT NOT NULL,
        process INTEGER NOT NULL, alive_until_s REAL NOT NULL
    );
    CREATE INDEX broker_receivers_by_outlet ON broker_receivers (outlet);
    """,
)
OPTIONS = ("durability", "blocked_timeout_s", "busy_timeout_s", "lease_s", "max_body_bytes")
_PAGE_BYTES = 8192
_CHECKPOINT_PAGES = 2000


def path_of(url: BrokerUrl) -> Path:
    """sqlite:///events.db is relative to the working folder, sqlite:////var/lib/events.db is absolute."""
    if url.hosts or len(url.path) < 2:
        raise InvalidValue(f"{url} names no file: write sqlite:///events.db, or sqlite:////folder/events.db")
    path = Path(url.path[1:])
    if not path.absolute().parent.is_dir():
        raise Unreachable(f"there is no folder {path.absolute().parent} for the file of {url}: create it first")
    return path


def open_file(path: Path, *, create: bool, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection in WAL mode with our tables up to date; the caller's thread owns it."""
    if not create and not path.exists():
        raise Unreachable(f"there is no file {path}: has anything been sent to it yet?")
    if create:
        create_private(path)
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise to_broker_error(error, path) from error
    try:
        _prepare(connection, path, busy_timeout_s)
    except sqlite3.Error as error:
        connection.close()
        raise to_broker_error(error, path) from error
    except BrokerError:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, busy_timeout_s: float) -> None:
    connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    if _version(connection, path) < len(MIGRATIONS):
        use_write_ahead_log(connection, busy_timeout_s)
        connection.execute("BEGIN IMMEDIATE")
        for number in range(_version(connection, path), len(MIGRATIONS)):  # another process may have been first
            for statement in MIGRATIONS[number].split(";"):
                connection.execute(statement)
            connection.execute("UPDATE broker_schema SET version = ?", (number + 1,))
        connection.execute("COMMIT")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit={4 * _CHECKPOINT_PAGES * _PAGE_BYTES}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if "broker_schema" not in tables:
        if tables:
            raise Unreachable(
                f"{path} belongs to another program (it has a table {min(tables)!r}): use another file"
            )
        return 0
    version: int = connection.execute("SELECT version FROM broker_schema").fetchone()[0]
    if version > len(MIGRATIONS):
        raise Unreachable(
            f"{path} was written by a newer Flyball (schema {version}, this one knows {len(MIGRATIONS)}): "
            "update Flyball or use another file"
        )
    return version


def to_broker_error(error: sqlite3.Error, path: Path) -> BrokerError:
    """The port's error for an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    code = None if code is None else code & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return Blocked(
            f"no space left for {path} on its disk: nothing of this call was stored; free some and send again"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Blocked(f"another process keeps {path} locked: try again, or find that process")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return Unreachable(
            f"{path} is not a SQLite file, or is damaged ({error}): use another file or restore this one"
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return Unreachable(f"{path} cannot be opened for writing ({error}): check its permissions and folder")
    return Unreachable(f"{path} failed: {error}; check the file and its disk")
