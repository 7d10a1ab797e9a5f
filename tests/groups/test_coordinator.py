"""Leaders on a real store: one at a time, each goes on from the one before, a replaced one cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flyball.groups.coordinator import Coordinator
from flyball.groups.group_store import GroupStore, StoredState
from flyball.groups.policy.reports import Report
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import GroupState
from flyball.store import Documents, Fenced, Leases, SqliteDatabase, open_database
from flyball.store.candidacy import MAX_FAILURES
from flyball.store.host_time import HostTime
from flyball.store.leases import Lease

_TTL_S = 6.0


class _Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> HostTime:
        return HostTime("boot", self.seconds)


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def database(tmp_path: Path, clock: _Clock) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(tmp_path / "groups.db", clock=clock) as opened:
        yield opened


def _coordinator(store: GroupStore, candidate: str) -> Coordinator:
    return Coordinator(store, GroupRules(), candidate, ttl_s=_TTL_S)


def test_the_next_leader_goes_on_without_a_move(database: SqliteDatabase, clock: _Clock) -> None:
    store = GroupStore(database, "shop")
    first, second = _coordinator(store, "m1#1"), _coordinator(store, "m2#2")
    tokens = {name: store.begin(name, Report({"orders": 5}), 1000.0) for name in ("m1", "m2")}
    assert first.run_round() is not None
    assert second.run_round() is None
    before = store.read().state
    assert len(before.grants) == 5
    clock.seconds += _TTL_S
    found = second.run_round()
    assert found is not None
    assert second.leads
    assert found.state.grants == before.grants
    assert found.state.round == before.round
    assert found.state.granted_to("m1", tokens["m1"])


def test_a_leader_that_was_paused_past_its_lease_cannot_write(database: SqliteDatabase, clock: _Clock) -> None:
    """It is paused between its decision and its write; the successor writes first."""
    quick = GroupStore(database, "shop")

    class _Paused(GroupStore):
        def write(self, state: GroupState, replaced: StoredState, lease: Lease) -> StoredState:
            clock.seconds += _TTL_S + 1
            quick.begin("m2", Report({"orders": 5}), 1000.0)
            assert _coordinator(quick, "m2#2").run_round() is not None
            return super().write(state, replaced, lease)

    quick.begin("m1", Report({"orders": 5}), 1000.0)
    paused = _coordinator(_Paused(database, "shop"), "m1#1")
    with pytest.raises(Fenced, match="'m1#1' no longer holds 'group shop': its token 1 was followed by 2"):
        paused.run_round()
    assert not paused.leads
    assert set(quick.read().state.tokens) == {"m1", "m2"}


def test_a_leader_that_fails_three_rounds_lets_another_try(database: SqliteDatabase) -> None:
    store = GroupStore(database, "shop")
    store.begin("m1", Report({"orders": 5}), 1000.0)

    class _Broken(GroupStore):
        def sessions(self) -> list[object]:  # type: ignore[override]
            raise RuntimeError("no")

    broken, next_one = _coordinator(_Broken(database, "shop"), "m1#1"), _coordinator(store, "m2#2")
    for _ in range(MAX_FAILURES):
        with pytest.raises(RuntimeError, match="no"):
            broken.run_round()
        assert next_one.run_round() is None or not broken.leads
    assert broken.run_round() is None  # it pauses
    assert next_one.run_round() is not None
    assert next_one.leads


def test_expired_sessions_are_removed_and_cannot_return(database: SqliteDatabase, clock: _Clock) -> None:
    store = GroupStore(database, "shop")
    token = store.begin("m1", Report({"orders": 5}), 5.0)
    coordinator = _coordinator(store, "m2#2")
    coordinator.run_round()
    _coordinator(store, f"m1#{token}").run_round()
    clock.seconds += 5.0
    coordinator.run_round()
    assert store.sessions() == []
    assert Leases(database).candidates("group shop") == ["m2#2"]
    assert store.read().state.grants == {}
    clock.seconds -= 4.0  # a clock that was set back
    assert store.renew("m1", token, Report({"orders": 5}), 5.0) == "expired"


def test_resigning_frees_the_lease_at_once(store_url: str) -> None:
    with closing(open_database(store_url)) as database:
        store = GroupStore(database, "shop")
        first, second = _coordinator(store, "m1#1"), _coordinator(store, "m2#2")
        first.run_round()
        second.run_round()
        assert store.leader() == "m1"
        first.resign()
        assert second.run_round() is not None
        assert store.leader() == "m2"


def test_a_round_without_news_writes_nothing(database: SqliteDatabase) -> None:
    store = GroupStore(database, "shop")
    store.begin("m1", Report({"orders": 5}), 1000.0)
    coordinator = _coordinator(store, "m1#1")
    coordinator.run_round()
    version = Documents(database, "groups").version("shop")
    for _ in range(5):
        coordinator.run_round()
    assert Documents(database, "groups").version("shop") == version
