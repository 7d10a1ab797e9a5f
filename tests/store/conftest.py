"""A database of its own for each test, and children that really are other processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flyball.store import Database, SqliteDatabase, open_database

StartChild = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def database(path: Path) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(path) as opened:
        yield opened


@pytest.fixture
def shared_database(store_url: str) -> Iterator[Database]:
    """What groups and clusters share: every kind of database."""
    database = open_database(store_url)
    yield database
    database.close()


@pytest.fixture
def start_child() -> Iterator[StartChild]:
    """Starts a Python program given as text, with arguments; ended with the test, whatever happens."""
    children: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()
