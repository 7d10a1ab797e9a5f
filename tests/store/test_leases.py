"""Leases: one holder at a time under jumping clocks, restarts and paused processes; late writes are refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import Popen

import pytest

from flyball.errors import InvalidValue
from flyball.store import Database, Documents, Fenced, Leases, SqliteDatabase, open_database
from flyball.store.host_time import HostTime, host_time
from flyball.store.protocol import Result, Transaction


class HandClock:
    """A boot clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = HostTime("first boot", 1000.0)

    def __call__(self) -> HostTime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now = HostTime(self.now.boot, self.now.seconds + seconds)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


class ClockedDatabase:
    """A database with the clock of the test."""

    def __init__(self, database: Database, clock: HandClock) -> None:
        self._database, self.time = database, clock
        self.read, self.close = database.read, database.close

    def write(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
        return self._database.write(work, durable=durable)


@pytest.fixture
def clocked(shared_database: Database, clock: HandClock) -> ClockedDatabase:
    return ClockedDatabase(shared_database, clock)


@pytest.fixture
def leases(clocked: ClockedDatabase) -> Leases:
    return Leases(clocked)


def test_the_holder_renews_and_others_wait(leases: Leases, clock: HandClock) -> None:
    first = leases.campaign("lead", "b", ttl_s=3)
    assert first is not None
    assert first.token == 1
    for _ in range(10):
        clock.advance(2)
        renewed = leases.campaign("lead", "b", ttl_s=3)
        assert renewed is not None
        assert renewed.token == 1
        assert renewed.valid(clock())
        # A smaller id does not push a healthy leader aside.
        assert leases.campaign("lead", "a", ttl_s=3) is None
    holder = leases.holder("lead")
    assert holder is not None
    assert holder.holder == "b"


def test_the_smallest_live_id_takes_a_vacant_lease(leases: Leases, clock: HandClock) -> None:
    leases.campaign("lead", "node-1", ttl_s=3)
    for candidate in ("node-10", "node-2", "node-3"):
        assert leases.campaign("lead", candidate, ttl_s=10) is None
    assert leases.candidates("lead") == ["node-1", "node-2", "node-3", "node-10"]
    clock.advance(4)  # node-1 has expired
    assert leases.holder("lead") is None
    assert leases.campaign("lead", "node-10", ttl_s=10) is None
    assert leases.campaign("lead", "node-3", ttl_s=10) is None
    lease = leases.campaign("lead", "node-2", ttl_s=10)
    assert lease is not None
    assert lease.token == 2


def test_a_dead_candidate_does_not_keep_the_lease_vacant(leases: Leases, clock: HandClock) -> None:
    leases.campaign("lead", "z", ttl_s=3)
    leases.campaign("lead", "a", ttl_s=3)  # then dies
    clock.advance(4)
    assert leases.campaign("lead", "m", ttl_s=3) is not None


def test_release_passes_it_on_at_once_and_the_token_grows(leases: Leases) -> None:
    first = leases.campaign("lead", "a", ttl_s=100)
    assert first is not None
    leases.campaign("lead", "b", ttl_s=100)
    leases.release(first)
    assert leases.candidates("lead") == ["b"]
    second = leases.campaign("lead", "b", ttl_s=100)
    assert second is not None
    assert second.token == 2
    leases.release(first)  # late and harmless
    holder = leases.holder("lead")
    assert holder is not None
    assert holder.holder == "b"
    with pytest.raises(Fenced, match="token 1 was followed by 2"):
        leases.guarded(first, lambda _: None)
    leases.withdraw("lead", "b")
    assert leases.candidates("lead") == []


def test_a_holder_that_lost_it_gets_a_new_token(leases: Leases, clock: HandClock) -> None:
    first = leases.campaign("lead", "a", ttl_s=3)
    clock.advance(5)
    assert first is not None
    assert not first.valid(clock())
    # It has no new holder, so this write can do no harm.
    assert leases.guarded(first, lambda _: "written") == "written"
    second = leases.campaign("lead", "a", ttl_s=3)
    assert second is not None
    assert second.token == 2
    with pytest.raises(Fenced):
        leases.guarded(first, lambda _: None)


def test_a_refused_write_leaves_nothing_behind(
    shared_database: Database, leases: Leases, clock: HandClock
) -> None:
    old = leases.campaign("lead", "a", ttl_s=3)
    clock.advance(4)
    new = leases.campaign("lead", "b", ttl_s=3)
    assert old is not None
    assert new is not None
    documents = Documents(shared_database, "groups")
    documents.put("plan", "new", lease=new)
    with pytest.raises(Fenced, match="'a' no longer holds 'lead'"):
        documents.put("plan", "old", lease=old)
    with pytest.raises(Fenced):
        documents.delete("plan", lease=old)
    document = documents.get("plan")
    assert document is not None
    assert document.value == "new"


def test_wall_clock_jumps_change_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(SqliteDatabase(path))
    lease = leases.campaign("lead", "a", ttl_s=3600)
    assert lease is not None
    real = time.time
    for jump_s in (1e9, -1e9):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
        assert lease.valid(host_time())
        assert leases.campaign("lead", "0", ttl_s=3600) is None
        renewed = leases.campaign("lead", "a", ttl_s=3600)
        assert renewed is not None
        assert renewed.token == lease.token


@pytest.mark.parametrize("now", [HostTime("second boot", 1001.0), HostTime("first boot", 5.0)])
def test_after_a_restart_of_the_host_the_lease_is_vacant(leases: Leases, clock: HandClock, now: HostTime) -> None:
    lease = leases.campaign("lead", "a", ttl_s=30)
    assert lease is not None
    clock.now = now  # another boot id, or (where the system tells none) a clock that began again
    assert not lease.valid(clock())
    lease = leases.campaign("lead", "b", ttl_s=30)
    assert lease is not None
    assert lease.token == 2


def test_waiting_for_the_database_shortens_the_lease(shared_database: Database, clock: HandClock) -> None:
    class SlowDatabase(ClockedDatabase):
        def write(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
            clock.advance(2)
            return super().write(work, durable=durable)

    leases = Leases(SlowDatabase(shared_database, clock))
    before = clock().seconds
    lease = leases.campaign("lead", "a", ttl_s=3)
    assert lease is not None
    assert lease.until_s == before + 3
    assert leases.campaign("lead", "a", ttl_s=1) is None, "it had run out before it was written"


def test_a_time_to_live_must_be_positive(leases: Leases) -> None:
    with pytest.raises(InvalidValue, match="ttl_s of lease 'lead' must be > 0, got 0"):
        leases.campaign("lead", "a", ttl_s=0)


HOLDER = """
import sys
from flyball.store import Documents, Fenced, Leases, open_database
database = open_database(sys.argv[1])
leases, documents = Leases(database), Documents(database, "groups")
lease = leases.campaign("lead", "a", ttl_s=0.5)
print("token", lease.token, flush=True)
for line in sys.stdin:
    try:
        print("version", documents.put("plan", line.strip(), lease=lease).version, flush=True)
    except Fenced as error:
        print("refused", "valid" if lease.valid(database.time()) else "run out", error, flush=True)
"""


def test_a_paused_holder_s_late_write_is_refused(store_url: str, start_child: Callable[..., Popen[str]]) -> None:
    child = start_child(HOLDER, store_url)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "token 1\n"
    print("first", file=child.stdin, flush=True)
    assert child.stdout.readline() == "version 1\n"
    os.kill(child.pid, signal.SIGSTOP)
    try:
        with closing(open_database(store_url)) as database:
            leases, documents = Leases(database), Documents(database, "groups")
            lease = None
            while lease is None:  # bounded by the holder's time to live
                lease = leases.campaign("lead", "b", ttl_s=60)
                time.sleep(0.02)
            assert lease.token == 2
            documents.put("plan", "second", lease=lease)
            # The paused holder gets this as soon as it runs again, believing it still leads.
            print("late", file=child.stdin, flush=True)
            os.kill(child.pid, signal.SIGCONT)
            answer = child.stdout.readline()
            assert answer.startswith("refused run out 'a' no longer holds 'lead': its token 1 was followed by 2")
            document = documents.get("plan")
            assert document is not None
            assert (document.value, document.version) == ("second", 2)
    finally:
        os.kill(child.pid, signal.SIGCONT)


CANDIDATE = """
import sys, time
from flyball.store import Documents, Fenced, Leases, open_database
database = open_database(sys.argv[1])
leases, name = Leases(database), sys.argv[2]
written = 0
print("ready", flush=True)
sys.stdin.readline()
while written < 30:
    lease = leases.campaign("lead", name, ttl_s=0.2)
    if lease is None:
        continue
    try:
        values = (lease.token, name)
        leases.guarded(lease, lambda t: t.execute("INSERT INTO log SELECT count(*), ?, ? FROM log", values))
        written += 1
        if written % 10 == 0:
            leases.release(lease)
    except Fenced:
        pass
leases.withdraw("lead", name)
"""


def test_processes_that_compete_write_under_growing_tokens(
    store_url: str, start_child: Callable[..., Popen[str]]
) -> None:
    with closing(open_database(store_url)) as database:
        database.write(lambda t: t.execute("CREATE TABLE log (at INTEGER, token INTEGER, name TEXT)"))
        children = [start_child(CANDIDATE, store_url, name) for name in ("x", "y", "z")]
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        for child in children:
            assert child.stdin is not None
            print("go", file=child.stdin, flush=True)
        assert [child.wait() for child in children] == [0, 0, 0]
        rows = database.read(lambda t: t.execute("SELECT token, name FROM log ORDER BY at").fetchall())
    tokens = [token for token, _ in rows]
    assert len(rows) == 90
    assert tokens == sorted(tokens), "a write had an older token than the one before"
    assert len({(token, name) for token, name in rows}) == len(set(tokens)), "a token had two holders"
    assert len(set(tokens)) >= 9
