"""Members as real processes that are killed, paused and cut off from their store.

Checked at the end of every run: no effect was applied twice and none was left out, whoever wrote it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from flyball.groups.group_store import GroupStore
from flyball.servers.postgresql import PostgresqlServer
from flyball.servers.proxy import FaultProxy
from flyball.store import open_database
from tests.groups.member_process import HEARTBEAT_S, SESSION_S
from tests.groups.processes import SLACK_S, MemberProcesses
from tests.groups.test_member import TrialGroup, until
from tests.postgresql_databases import empty_database


@contextmanager
def _group(folder: Path, store: str, queues: int, *names: str) -> Iterator[MemberProcesses]:
    processes = MemberProcesses(folder, store, queues)
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
        assert group.longest_gap_s(since_s) < SESSION_S + HEARTBEAT_S + SLACK_S


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
        group = MemberProcesses(tmp_path, url, 4)
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
