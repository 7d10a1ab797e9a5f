"""Client mode: members that compute their own queues from views of different age."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import closing
from typing import Any

import pytest

from flyball.groups.client_member import ClientMember
from flyball.groups.config import GroupConfig, ViewOptions
from flyball.groups.policy.state import Subscription
from flyball.groups.view_replicas import ViewReplicas
from flyball.store import open_database
from tests.groups.test_member import until
from tests.groups.trial_readers import Timeline, TrialReaders

_TOPICS = {"orders": 6}
_BOTH = Subscription(frozenset(_TOPICS))


def _replicas(url: str, *, count: int = 3, lag_s: float = 0.0, loss: float = 0.0, seed: int = 0) -> ViewReplicas:
    return ViewReplicas(open_database(url), "shop", count=count, lag_s=lag_s, loss=loss, rng=random.Random(seed))


def test_every_replica_hears_of_every_member(store_url: str) -> None:
    first, second = _replicas(store_url), _replicas(store_url)
    assert first.heartbeat("a", _BOTH, _TOPICS, 60.0)
    assert second.heartbeat("b", _BOTH, _TOPICS, 60.0)
    assert first.heartbeat("a", _BOTH, _TOPICS, 60.0), "there is something new to see"
    assert not first.heartbeat("a", _BOTH, _TOPICS, 60.0)
    for _ in range(10):
        view = first.fetch()
        assert view is not None
        assert list(view.members) == ["a", "b"]
        assert view.topics == _TOPICS
    second.leave("b")
    assert all(list(view.members) == ["a"] for view in (first.fetch() for _ in range(10)) if view)


def test_a_silent_member_is_forgotten(store_url: str) -> None:
    replicas = _replicas(store_url)
    replicas.heartbeat("a", _BOTH, _TOPICS, 60.0)
    time.sleep(0.02)
    replicas.heartbeat("b", _BOTH, _TOPICS, 0.01)
    view = replicas.fetch()
    assert view is not None
    assert list(view.members) == ["b"]


def test_replicas_show_what_they_knew_some_time_ago(store_url: str) -> None:
    replicas = _replicas(store_url, count=2, lag_s=3600.0)  # one at once, one after two hours
    replicas.heartbeat("a", _BOTH, _TOPICS, 60.0)
    views = [replicas.fetch() for _ in range(40)]
    assert {tuple(view.members) for view in views if view} == {(), ("a",)}


def test_calls_are_lost(store_url: str) -> None:
    replicas = _replicas(store_url, count=1, loss=0.5)
    replicas.heartbeat("a", _BOTH, _TOPICS, 60.0)
    lost = sum(replicas.fetch() is None for _ in range(200))
    assert 50 < lost < 150


class _Group:
    def __init__(self, url: str) -> None:
        self.url, self.timeline = url, Timeline()
        self.readers: dict[str, TrialReaders] = {}

    def make(self, name: str, **views: Any) -> ClientMember:
        config = GroupConfig(
            name="shop",
            topics=["orders"],
            store=self.url,
            member=name,
            mode="client",
            strategy="averagely",
            views=ViewOptions(**views),
            heartbeat_s=0.1,
            session_timeout_s=2.0,
            rebalance_s=0.5,
        )
        self.readers[name] = TrialReaders(name, self.timeline, dict(_TOPICS))
        return ClientMember(config, self.readers[name], rng=random.Random(name))

    def sizes(self) -> list[int]:
        return [len(each.open) for each in self.readers.values()]


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_members_come_to_agree(store_url: str, loss: float) -> None:
    async def work() -> None:
        group = _Group(store_url)
        async with group.make("a", loss=loss) as a:
            await until(lambda: group.sizes() == [6])
            async with group.make("b", loss=loss) as b:
                await until(lambda: group.sizes() == [3, 3] and not a.owned.keys() & b.owned.keys())
                assert not a.leads
                assert min(b.owned.values()) > max(a.owned.values()), "it came later"
            await until(lambda: group.sizes() == [6, 0])

    asyncio.run(work())


def test_without_the_store_members_read_on(tmp_path: object) -> None:
    async def work() -> None:
        path = f"{tmp_path}/groups.db"
        group = _Group(f"sqlite:///{path}")
        member = group.make("a")
        await member.start()
        await until(lambda: group.sizes() == [6])
        with closing(open_database(group.url)) as database:
            database.write(lambda t: t.execute("DROP TABLE flyball_document").rowcount)
        await asyncio.sleep(0.5)
        assert group.sizes() == [6]
        await member.stop()
        assert group.sizes() == [0]

    asyncio.run(work())
