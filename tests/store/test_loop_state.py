"""Loop states: what was saved last is what a new process loads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

from flyball.store import LoopStates, SqliteDatabase, StateStore


def test_the_last_save_is_loaded(path: Path) -> None:
    with SqliteDatabase(path) as database:
        states: StateStore = LoopStates(database)
        assert states.load("prefetch") is None
        states.save("prefetch", {"integral": 0.1, "applied": None})
        states.save("prefetch", {"integral": 0.30000000000000004, "applied": [1, 2.5]})
        states.save("other", "frozen")
    with SqliteDatabase(path) as database:
        again = LoopStates(database)
        assert again.load("prefetch") == {"integral": 0.30000000000000004, "applied": [1, 2.5]}
        assert again.load("other") == "frozen"
        again.forget("other")
        assert again.load("other") is None


def test_many_loops_are_saved_together(database: SqliteDatabase) -> None:
    states = LoopStates(database, durable=True)
    states.save_all({f"loop {number}": number for number in range(1000)})
    assert [states.load(f"loop {number}") for number in (0, 999)] == [0, 999]


SAVER = """
import sys
from flyball.store import LoopStates, SqliteDatabase
states = LoopStates(SqliteDatabase(sys.argv[1]))
for number in range(1000000):
    states.save("loop", number)
    print(number, flush=True)
"""


def test_a_save_survives_kill_9(path: Path, start_child: Callable[..., Popen[str]]) -> None:
    child = start_child(SAVER, path)
    assert child.stdout is not None
    for _ in range(50):
        child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    said = [int(line) for line in child.stdout if line.endswith("\n")]
    with SqliteDatabase(path) as database:
        loaded = LoopStates(database).load("loop")
    assert loaded is not None
    assert loaded >= (said[-1] if said else 49)
