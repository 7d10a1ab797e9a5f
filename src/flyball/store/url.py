"""Open the database that a URL names."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from flyball.errors import InvalidValue, require
from flyball.store.protocol import Database
from flyball.store.sqlite import SqliteDatabase

_SQLITE = "sqlite:///"
_POSTGRESQL = ("postgresql://", "postgres://")


def open_database(url: str, *, create: bool = True, answer_timeout_s: float = 10.0) -> Database:
    """Open the database at `url`; the tables are created if they do not exist.

    "sqlite:///groups.db" is a file relative to the working directory, "sqlite:////var/lib/groups.db" an absolute
    one, shared by the processes of one host. "postgresql://user@host/database" is shared by hosts. `create` False:
    there must be a store already. `answer_timeout_s`: how long a call waits for other writers.
    """
    mistake = describe_url_mistake(url)
    if mistake is not None:
        raise InvalidValue(f"store {mistake}")
    if url.startswith(_POSTGRESQL):
        require("psycopg", "postgresql")
        from flyball.store.postgresql import PostgresqlDatabase

        return PostgresqlDatabase(url, answer_timeout_s=answer_timeout_s, create=create)
    path = url.removeprefix(_SQLITE)
    if not create:
        _check_store(path)
    return SqliteDatabase(path, busy_s=answer_timeout_s)


def _check_store(path: str) -> None:
    if not Path(path).is_file():
        raise InvalidValue(f"there is no file {path}: name the store of a group or cluster")
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
        try:
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'flyball_schema'").fetchone()
        except sqlite3.OperationalError as error:
            raise InvalidValue(f"{path} cannot be read ({error}): try again") from None
        except sqlite3.DatabaseError:
            known = (1,)  # no database: refused by the caller, with the words of the store
    if known is None:
        raise InvalidValue(f"{path} has no tables of Flyball: name the store of a group or cluster")


def describe_url_mistake(url: str) -> str | None:
    """What is wrong with the URL of a store, to be put behind its name; None: nothing."""
    if url.startswith(_POSTGRESQL) or (url.startswith(_SQLITE) and url != _SQLITE):
        return None
    shown = re.sub("//[^/]*@", "//***@", url)
    return f"must be a URL like sqlite:///groups.db or postgresql://user@host/database, got {shown!r}"
