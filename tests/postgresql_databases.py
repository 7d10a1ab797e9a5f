"""A PostgreSQL server for tests, and databases of it, one for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from flyball.servers import ServerMissing
from flyball.servers.postgresql import PostgresqlServer


def started_postgresql() -> Iterator[PostgresqlServer]:
    """For fixtures: a server that runs meanwhile; without PostgreSQL the tests are skipped."""
    server = PostgresqlServer()
    try:
        server.start()
    except ServerMissing as reason:
        pytest.skip(str(reason))
    with server:
        yield server


def empty_database(server: PostgresqlServer) -> str:
    """Create a database of its own for a test; return its URL."""
    import psycopg

    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.url.replace("/postgres", f"/{name}")
