"""Members as processes that are killed and paused, and the sink in which their effects are checked."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from flyball.groups.group_store import GroupStore
from flyball.store import SqliteDatabase, open_database
from tests.groups.member_process import GROUP, TABLES

Found = TypeVar("Found")

LIMIT_S = 90.0
SLACK_S = 20.0
"""For a machine that does much else."""


class MemberProcesses:
    """The members of one group, and the sink they write to."""

    recent_s = 0.5
    """Who wrote within this time reads."""

    def __init__(self, folder: Path, store: str, queues: int) -> None:
        self.store, self.queues = store, queues
        self.sink = folder / "sink.db"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.calm_since_s = time.monotonic()
        with SqliteDatabase(self.sink) as database:
            database.write(lambda t: [t.execute(table).rowcount for table in TABLES])

    def start(self, *names: str, store: str | None = None) -> None:
        root = Path(__file__).parents[2]
        for name in names:
            self.running[name] = subprocess.Popen(
                self.command(name, store or self.store), cwd=root, stdout=subprocess.DEVNULL
            )

    def command(self, name: str, store: str) -> list[str]:
        program = [sys.executable, "-m", "tests.groups.member_process"]
        return [*program, store, str(self.sink), name, str(self.queues)]

    def kill(self, *names: str) -> None:
        for name in names:
            process = self.running.pop(name)
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def pause(self, name: str) -> None:
        """Stop a process, but not while it writes to a SQLite file: then nobody else could."""
        files = [str(self.sink)]
        if self.store.startswith("sqlite"):
            files.append(self.store.removeprefix("sqlite:///"))
        for _ in range(100):
            os.kill(self.running[name].pid, signal.SIGSTOP)
            if not any(map(_is_locked, files)):
                return
            self.resume(name)
        raise AssertionError(f"{name} always writes")

    def resume(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGCONT)

    def stop_all(self) -> None:
        for name in list(self.running):
            self.kill(name)

    def leader(self) -> str:
        with closing(open_database(self.store)) as database:
            store = GroupStore(database, GROUP)
            return self.wait_for(store.leader)

    def await_owners(self, *names: str) -> dict[int, str]:
        """Wait until these members, and only they, read all queues, shared evenly; return who reads which."""
        low, rest = divmod(self.queues, len(names))

        def shared() -> dict[int, str] | None:
            owners = self._newest_owners(since_s=time.monotonic() - self.recent_s)
            sizes = sorted(list(owners.values()).count(name) for name in names)
            even = sizes == [low] * (len(names) - rest) + [low + 1] * rest
            return owners if even and len(owners) == self.queues and set(owners.values()) <= set(names) else None

        owners = self.wait_for(shared)
        self.calm_since_s = time.monotonic()
        return owners

    def wait_for(self, find: Callable[[], Found | None]) -> Found:
        deadline = time.monotonic() + LIMIT_S
        while (found := find()) is None:
            assert time.monotonic() < deadline, "the group did not come to rest"
            for name, process in self.running.items():
                assert process.poll() is None, f"{name} ended with {process.returncode}"
            time.sleep(0.1)
        return found

    def check_effects(self) -> None:
        with closing(sqlite3.connect(self.sink)) as sink:
            rows = sink.execute(
                "SELECT number, count(*), count(DISTINCT message), min(message), max(message) "
                "FROM effect GROUP BY number"
            ).fetchall()
        assert len(rows) == self.queues
        for number, effects, different, first, last in rows:
            assert effects == different, f"{effects - different} effects of queue {number} were applied twice"
            assert (first, last) == (0, different - 1), f"effects of queue {number} are missing"

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time for which a queue had no effect."""
        with closing(sqlite3.connect(self.sink)) as sink:
            rows = sink.execute("SELECT number, time_s FROM effect WHERE time_s > ? ORDER BY 1, 2", (since_s,))
            longest = 0.0
            last: dict[int, float] = {}
            for number, time_s in rows:
                longest = max(longest, time_s - last.get(number, since_s))
                last[number] = time_s
        return longest

    def _newest_owners(self, since_s: float) -> dict[int, str]:
        with closing(sqlite3.connect(self.sink)) as sink:
            rows = sink.execute(
                "SELECT number, member FROM effect WHERE time_s > ? ORDER BY time_s", (since_s,)
            ).fetchall()
        return dict(rows)


def _is_locked(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=2.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
