"""Sessions that expire, are superseded and are removed, in every kind of database."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flyball.errors import InvalidValue
from flyball.store import Database, Leases, Sessions, SqliteDatabase
from flyball.store.host_time import HostTime


class _Clock:
    def __init__(self) -> None:
        self.now = HostTime("boot", 100.0)

    def __call__(self) -> HostTime:
        return self.now

    def add(self, seconds: float) -> None:
        self.now = HostTime(self.now.boot, self.now.seconds + seconds)


def test_tokens_grow_and_reports_are_read(shared_database: Database) -> None:
    sessions = Sessions(shared_database, "group shop")
    first = sessions.begin("m1", {"n": 1}, ttl_s=60)
    second = sessions.begin("m2", None, ttl_s=60)
    assert second > first
    assert sessions.renew("m1", first, {"n": 2}, ttl_s=60) == "renewed"
    found = [(s.member, s.token, s.alive, s.value) for s in sessions.all()]
    assert found == [("m1", first, True, {"n": 2}), ("m2", second, True, None)]
    assert Sessions(shared_database, "group other").all() == []
    sessions.end("m1", first)
    sessions.end("m1", first)
    assert [s.member for s in sessions.all()] == ["m2"]
    assert sessions.begin("m1", None, ttl_s=60) > second


def test_an_older_session_may_report_but_not_live_on(shared_database: Database) -> None:
    sessions = Sessions(shared_database, "group shop")
    old = sessions.begin("m1", "old", ttl_s=0.6)
    new = sessions.begin("m1", "new", ttl_s=60)
    assert sessions.renew("m1", old, "stopped", ttl_s=60) == "superseded"
    assert [(s.token, s.value) for s in sessions.all()] == [(old, "stopped"), (new, "new")]
    while sessions.all()[0].alive:
        time.sleep(0.02)
    assert sessions.renew("m1", old, "again", ttl_s=60) == "expired"
    assert sessions.renew("m1", new, "new", ttl_s=60) == "renewed"


def test_an_expired_session_is_over_for_good(path: Path) -> None:
    clock = _Clock()
    with SqliteDatabase(path, clock=clock) as database:
        sessions = Sessions(database, "group shop")
        token = sessions.begin("m1", None, ttl_s=6)
        clock.add(5.9)
        assert sessions.renew("m1", token, None, ttl_s=6) == "renewed"
        clock.add(6.0)
        assert not sessions.all()[0].alive
        assert sessions.renew("m1", token, None, ttl_s=6) == "expired"
        clock.now = HostTime("another boot", 3.0)
        assert not sessions.all()[0].alive


def test_a_removed_session_cannot_renew(shared_database: Database) -> None:
    sessions, leases = Sessions(shared_database, "group shop"), Leases(shared_database)
    token = sessions.begin("m1", None, ttl_s=60)
    lease = leases.campaign("group shop", "m2", ttl_s=60)
    assert lease is not None
    leases.guarded(lease, lambda t: sessions.remove(t, [("m1", token), ("m9", 1)]))
    assert sessions.renew("m1", token, None, ttl_s=60) == "expired"


def test_a_time_to_live_must_be_positive(database: SqliteDatabase) -> None:
    with pytest.raises(InvalidValue, match="ttl_s of member 'm1' must be > 0, got 0"):
        Sessions(database, "group shop").begin("m1", None, ttl_s=0)
