"""The connection of an application's own transaction, in which the outbox takes part."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from flyball.errors import InvalidValue
from flyball.store.protocol import Transaction


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
