"""Members as real processes that are killed, paused and cut off from their store.

Checked at the end of every run: no effect was applied twice and none was left out, whoever wrote it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from flyball.groups.group_store import GroupStore
from flyball.servers.postgresql import PostgresqlServer
from flyball.servers.proxy import FaultProxy
from flyball.store import SqliteDatabase, open_database
from tests.groups.member_process import GROUP, HEARTBEAT_S, SESSION_S, TABLES
from tests.groups.test_member import TrialGroup, until
from tests.postgresql_databases import empty_database

Found = TypeVar("Found")

_LIMIT_S = 90.0
_SLACK_S = 20.0
"""For a machine that does much else."""


class _Processes:
    """The members of one group, and the sink they write to."""

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
            command = [sys.executable, "-m", "tests.groups.member_process", store or self.store, str(self.sink)]
            self.running[name] = subprocess.Popen(
                [*command, name, str(self.queues)], cwd=root, stdout=subprocess.DEVNULL
            )

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
            owners = self._newest_owners(since_s=time.monotonic() - 0.5)
            sizes = sorted(list(owners.values()).count(name) for name in names)
            even = sizes == [low] * (len(names) - rest) + [low + 1] * rest
            return owners if even and len(owners) == self.queues and set(owners.values()) <= set(names) else None

        owners = self.wait_for(shared)
        self.calm_since_s = time.monotonic()
        return owners

    def wait_for(self, find: Callable[[], Found | None]) -> Found:
        deadline = time.monotonic() + _LIMIT_S
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


@contextmanager
def _group(folder: Path, store: str, queues: int, *names: str) -> Iterator[_Processes]:
    processes = _Processes(folder, store, queues)
    try:
        processes.start(*names)
        processes.await_owners(*names)
        yield processes
    finally:
        processes.stop_all()
    processes.check_effects()


def test_kill_and_restart_of_some_of_most_and_of_the_leader(store_url: str, tmp_path: Path) -> None:
    names = ["m1", "m2", "m3", "m4"]
    with _group(tmp_path, store_url, 6, *names) as group:
        since_s = group.calm_since_s
        leader = group.leader()
        minor = next(name for name in names if name != leader)
        for victims in ([minor], [name for name in names if name not in (leader, minor)] + [minor], [leader]):
            survivors = [name for name in names if name not in victims]
            group.kill(*victims)
            group.await_owners(*survivors)
            group.start(*victims)
            group.await_owners(*names)
        assert group.leader() != leader
        assert group.longest_gap_s(since_s) < SESSION_S + HEARTBEAT_S + _SLACK_S


def test_the_same_member_again_and_again_moves_nothing_else(tmp_path: Path) -> None:
    with _group(tmp_path, f"sqlite:///{tmp_path}/groups.db", 6, "m1", "m2", "m3") as group:
        before = group.await_owners("m1", "m2", "m3")
        for _ in range(2):
            group.kill("m2")
            group.start("m2")  # within its session, or soon after it
            after = group.await_owners("m1", "m2", "m3")
        stayed = [number for number, name in before.items() if name != "m2"]
        assert [after[number] for number in stayed] == [before[number] for number in stayed]


def test_pauses_of_a_member_and_of_the_leader(store_url: str, tmp_path: Path) -> None:
    names = ["m1", "m2", "m3"]
    with _group(tmp_path, store_url, 5, *names) as group:
        leader = group.leader()
        for victim in (next(name for name in names if name != leader), leader):
            others = [name for name in names if name != victim]
            group.pause(victim)
            group.await_owners(*others)  # past its session, and past its lease
            assert group.leader() != victim
            group.resume(victim)
            group.await_owners(*names)


def test_a_partition_and_a_bad_link_between_a_member_and_the_store(
    postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    url = empty_database(postgresql)
    with FaultProxy(postgresql.port) as proxy:
        through = url.replace(f":{postgresql.port}/", f":{proxy.port}/")
        group = _Processes(tmp_path, url, 4)
        try:
            group.start("m1", store=through)
            group.await_owners("m1")
            group.start("m2", "m3")
            group.await_owners("m1", "m2", "m3")
            assert group.leader() == "m1"
            proxy.stall()  # it hears nothing, and does not know why
            group.await_owners("m2", "m3")
            proxy.flow()
            group.await_owners("m1", "m2", "m3")
            for _ in range(10):  # a link that loses what it carries
                proxy.cut()
                time.sleep(0.2)
                proxy.stall()
                time.sleep(0.2)
                proxy.flow()
            group.await_owners("m1", "m2", "m3")
        finally:
            group.stop_all()
        group.check_effects()


def test_a_hundred_members_join_at_once(tmp_path: Path) -> None:
    """They share two processors: the time-out is long, so that what is shown is the plan, not the machine."""

    async def work() -> None:
        group = TrialGroup(f"sqlite:///{tmp_path}/groups.db", queues=150, session_timeout_s=60.0, heartbeat_s=1.0)
        names = [f"m{number}" for number in range(100)]
        await asyncio.gather(*(group.start(name) for name in names))
        await group.until_balanced(*names)
        with closing(open_database(group.url)) as database:
            store = GroupStore(database, "shop")
            state = store.read().state
        assert len(state.members) == 100
        assert len(state.history) < 30  # they were planned for together
        await until(lambda: sum(member.leads for member in group.members.values()) == 1)
        await asyncio.gather(*(group.members[name].stop(leave=True) for name in names))
        assert group.timeline.overlaps == []

    asyncio.run(work())


def test_more_processes_than_queues(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(5)]
    with _group(tmp_path, f"sqlite:///{tmp_path}/groups.db", 2, *names) as group:
        busy = sorted(set(group.await_owners(*names).values()))
        group.kill(*busy)
        group.await_owners(*(name for name in names if name not in busy))
