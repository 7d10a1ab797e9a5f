"""Members on a real store: they join, hand over, lose the store, are superseded, return."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest

from flyball.groups.config import GroupConfig
from flyball.groups.group_store import GroupStore
from flyball.groups.member import GroupMember, Superseded
from flyball.groups.policy.state import GroupState
from flyball.servers.postgresql import PostgresqlServer
from flyball.servers.proxy import FaultProxy
from flyball.store import open_database
from tests.groups.trial_readers import Timeline, TrialReaders
from tests.postgresql_databases import empty_database

_LIMIT_S = 60.0


class TrialGroup:
    """Members of one group in this process, each with its own connections to the store."""

    def __init__(self, url: str, queues: int = 6, **config: Any) -> None:
        self.url, self.counts, self.timeline = url, {"orders": queues}, Timeline()
        self._config = {
            "heartbeat_s": 0.2,
            "session_timeout_s": 3.0,
            "coalesce_s": 0.2,
            "rebalance_s": 1.0,
            "release_timeout_s": 1.0,
            **config,
        }
        self.members: dict[str, GroupMember] = {}
        self.readers: dict[str, TrialReaders] = {}

    def make(self, name: str, *, url: str | None = None, **readers: Any) -> GroupMember:
        config = GroupConfig(name="shop", topics=["orders"], store=url or self.url, member=name, **self._config)
        self.readers[name] = TrialReaders(name, self.timeline, self.counts, **readers)
        self.members[name] = GroupMember(config, self.readers[name])
        return self.members[name]

    async def start(self, name: str, **options: Any) -> GroupMember:
        member = self.make(name, **options)
        await member.start()
        return member

    def owners(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for (_, number), name in sorted(self.timeline.reading.items()):
            found.setdefault(name, []).append(number)
        return found

    async def until_balanced(self, *names: str) -> None:
        low, rest = divmod(self.counts["orders"], len(names))

        def balanced() -> bool:
            owners = self.owners()
            sizes = sorted(len(owners.get(name, [])) for name in names)
            return set(owners) <= set(names) and sizes == [low] * (len(names) - rest) + [low + 1] * rest

        await until(balanced)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not condition():
            await asyncio.sleep(0.02)


def _run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def _state(url: str) -> GroupState:
    with closing(open_database(url)) as database:
        return GroupStore(database, "shop").read().state


def test_members_share_the_queues_and_hand_them_over(store_url: str) -> None:
    async def work() -> None:
        group = TrialGroup(store_url)
        async with AsyncExitStack() as stack:
            for name in ("m1", "m2", "m3"):
                await group.start(name, drain_s=0.1)
                stack.push_async_callback(group.members[name].stop)
            await group.until_balanced("m1", "m2", "m3")
            assert [name for name, member in group.members.items() if member.leads] == ["m1"]
            stayed = {name: set(queues) for name, queues in group.owners().items()}
            await group.members["m2"].stop(leave=True)
            await group.until_balanced("m1", "m3")
            for name in ("m1", "m3"):
                assert stayed[name] <= set(group.owners()[name])
                released = {number for _, number in group.timeline.of(name, "release")}
                assert not released & stayed[name]  # what stayed was never paused
            # the leader leaves: the next one goes on without a move
            await group.members["m1"].stop(leave=True)
            await group.until_balanced("m3")
            assert group.members["m3"].leads
        assert group.timeline.overlaps == []
        history = _state(store_url).history
        assert [record.reason for record in history if "left" in record.reason] == ["m2 left", "m1 left"]
        assert sum(record.clean for record in history) > 0

    _run(work)


def test_a_member_that_returns_finds_its_queues_untouched(store_url: str) -> None:
    async def work() -> None:
        group = TrialGroup(store_url, session_timeout_s=20.0)
        await group.start("m1")
        await group.start("m2")
        await group.until_balanced("m1", "m2")
        before, plans = group.owners(), len(_state(store_url).history)
        await group.members["m2"].stop()
        assert group.owners() == {"m1": before["m1"]}
        await group.start("m2")
        await until(lambda: group.owners() == before)
        assert len(_state(store_url).history) == plans
        for name in ("m1", "m2"):
            await group.members[name].stop()
        assert group.timeline.overlaps == []

    _run(work)


def test_a_second_process_with_the_same_id_replaces_the_first(store_url: str) -> None:
    async def work() -> None:
        group = TrialGroup(store_url, session_timeout_s=20.0)
        first = await group.start("m1", drain_s=0.2)
        await group.until_balanced("m1")
        first_readers = group.readers["m1"]
        second = await group.start("m1")
        with pytest.raises(Superseded, match=r"member 'm1' of group 'shop' was started again; give every process"):
            await first.wait()
        await until(lambda: len(second.owned) == 6)
        assert not first_readers.open
        assert not first.leads
        await until(lambda: second.leads)
        await first.stop()
        await second.stop()

    _run(work)


def test_what_is_in_flight_too_long_is_forced(store_url: str) -> None:
    async def work() -> None:
        group = TrialGroup(store_url)
        await group.start("m1", drain_s=60.0)
        await group.until_balanced("m1")
        await group.start("m2")
        await group.until_balanced("m1", "m2")
        await until(lambda: sum(record.forced for record in _state(store_url).history) == 3)
        for name in ("m2", "m1"):
            await group.members[name].stop(leave=True)
        assert group.timeline.overlaps == []

    _run(work)


def test_a_broker_that_refuses_is_asked_again(store_url: str) -> None:
    async def work() -> None:
        group = TrialGroup(store_url, queues=2)
        member = group.make("m1")
        group.readers["m1"].failures = 3
        await member.start()
        await group.until_balanced("m1")
        await member.stop()

    _run(work)


def test_a_topic_that_grows_is_read_whole(store_url: str) -> None:
    async def work() -> None:
        group = TrialGroup(store_url, queues=2)
        await group.start("m1")
        await group.start("m2")
        await group.until_balanced("m1", "m2")
        group.counts["orders"] = 5
        await group.until_balanced("m1", "m2")
        for member in group.members.values():
            await member.stop()

    _run(work)


def test_where_the_broker_switches_members_follow_priorities(store_url: str) -> None:
    async def work() -> None:
        group = TrialGroup(store_url)
        await group.start("m1", switches=True)
        await until(lambda: len(group.readers["m1"].open) == 6)
        await group.start("m2", switches=True)
        await until(lambda: [len(readers.open) for readers in group.readers.values()] == [3, 3])
        assert all(readers.stands_by for readers in group.readers.values())
        generations = [set(readers.open.values()) for readers in group.readers.values()]
        assert min(generations[1]) > max(generations[0])
        for member in group.members.values():
            await member.stop()
            assert member.owned == {}

    _run(work)


def test_more_members_than_queues(store_url: str) -> None:
    async def work() -> None:
        group = TrialGroup(store_url, queues=3)
        names = [f"m{number}" for number in range(1, 7)]
        await asyncio.gather(*(group.start(name) for name in names))
        await group.until_balanced(*names)
        await asyncio.gather(*(group.members[name].stop(leave=True) for name in names))
        assert group.timeline.overlaps == []

    _run(work)


def test_a_lost_store_is_survived(postgresql: PostgresqlServer, caplog: pytest.LogCaptureFixture) -> None:
    """One member is cut off: it reads on, releases before its session expires, and joins again."""
    caplog.set_level(logging.WARNING, "flyball.groups")

    async def work() -> None:
        url = empty_database(postgresql)
        with FaultProxy(postgresql.port) as proxy:
            through = url.replace(f":{postgresql.port}/", f":{proxy.port}/")
            group = TrialGroup(url)
            await group.start("m1")
            await group.start("m2", url=through)
            await group.until_balanced("m1", "m2")
            for isolate, end in ((proxy.refuse, proxy.accept), (proxy.stall, proxy.flow)):
                isolate()
                if isolate == proxy.refuse:
                    proxy.cut()
                await group.until_balanced("m1")
                end()
                await group.until_balanced("m1", "m2")
            for name in ("m1", "m2"):
                await group.members[name].stop()
            assert group.timeline.overlaps == []

    _run(work)
    said = [record.getMessage() for record in caplog.records]
    assert sum("cannot be used, reading goes on" in line for line in said) in (1, 2)
    assert any("releases its queues" in line for line in said)
    assert any("can be used again" in line for line in said)


def test_a_store_that_cannot_be_opened_is_an_error_at_once(tmp_path: Any) -> None:
    async def work() -> None:
        group = TrialGroup(f"sqlite:///{tmp_path}/absent/store.db")
        with pytest.raises(Exception, match="cannot open"):
            await group.start("m1")

    _run(work)
