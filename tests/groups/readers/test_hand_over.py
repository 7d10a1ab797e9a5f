"""Hand-over in two phases: nothing is lost, handled twice or out of order, and other queues go on."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.groups.readers.members import GroupUnderTest, Handled, members, until

COUNT = 600


def test_a_busy_queue_goes_back_and_forth(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", "b") as (a, b):
            await a.readers.take(group.queue(0), 1)
            await b.readers.take(group.queue(1), 1)
            publishing = asyncio.create_task(group.send(0, range(COUNT)))
            other = asyncio.create_task(group.send(1, range(COUNT)))
            owner, next_owner, generation = a, b, 2
            for step in range(1, 7):
                await until(lambda step=step: len(handled.of(0)) >= step * 60)  # type: ignore[misc]
                assert await owner.readers.release(group.queue(0), 60.0)
                await next_owner.readers.take(group.queue(0), generation)
                owner, next_owner, generation = next_owner, owner, generation + 1
            await until(lambda: len(handled.of(0)) >= COUNT and len(handled.of(1)) >= COUNT)
            await asyncio.gather(publishing, other)
            assert handled.of(0) == list(range(COUNT))
            assert handled.of(1) == list(range(COUNT))
            assert {name for name, queue, _ in handled.numbers if queue == 0} == {"a", "b"}
            assert {name for name, queue, _ in handled.numbers if queue == 1} == {"b"}
            assert a.readers.hand_overs.clean == b.readers.hand_overs.clean == 3
            assert a.readers.hand_overs.forced == b.readers.hand_overs.forced == 0
            await until(lambda: not a.readers.receiver.in_flight and not b.readers.receiver.in_flight)
            assert await a.readers.depth() + await b.readers.depth() == 0

    asyncio.run(scenario())


def test_after_its_session_a_member_hands_nothing_out(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", window=5) as (a,):
            await a.readers.take(group.queue(0), 1)
            a.hold.clear()
            await group.send(0, range(20))
            await until(lambda: len(handled.of(0)) == 5)
            a.readers.receiver.may_hand_out = lambda: False
            a.hold.set()
            await until(lambda: not a.readers.receiver.in_flight)
            await asyncio.sleep(0.2)
            assert handled.of(0) == list(range(5))
            a.readers.receiver.may_hand_out = lambda: True  # the session was extended at the last moment
            await until(lambda: len(handled.of(0)) == 20)
            assert handled.of(0) == list(range(20))

    asyncio.run(scenario())


def test_what_is_not_settled_in_time_goes_back_with_the_same_id(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", "b", window=5) as (a, b):
            await a.readers.take(group.queue(0), 1)
            a.hold.clear()
            await group.send(0, range(40))
            await until(lambda: len(handled.of(0)) == 5)
            assert not await a.readers.release(group.queue(0), 0.1)
            assert a.readers.hand_overs.forced == 1
            assert a.readers.receiver.in_flight == 0
            await b.readers.take(group.queue(0), 2)
            await until(lambda: len(set(handled.of(0))) == 40 and b.readers.receiver.in_flight == 0)
            assert handled.of(0) == [*range(5), *range(40)]
            assert handled.by("b") == list(range(40))
            a.hold.set()  # the late acknowledgements of the old owner change nothing
            await asyncio.sleep(0.05)
            await group.send(0, [40])
            await until(lambda: handled.of(0)[-1] == 40)

    asyncio.run(scenario())


def test_a_release_can_be_hurried(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", window=5) as (a,):
            await a.readers.take(group.queue(0), 1)
            a.hold.clear()
            await group.send(0, range(5))
            await until(lambda: len(handled.of(0)) == 5)
            began_s = time.monotonic()
            release = asyncio.create_task(a.readers.release(group.queue(0), 3600.0))
            await asyncio.sleep(0.05)
            assert not await a.readers.release(group.queue(0), 0.1)
            assert not await release
            assert time.monotonic() - began_s < 600
            assert a.readers.hand_overs.forced == 1
            assert await a.readers.release(group.queue(0), 1.0), "a queue that is not read is released"

    asyncio.run(scenario())


def test_queues_are_measured(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", work_s=0.01) as (a,):
            await a.readers.take(group.queue(0), 1)
            await a.readers.take(group.queue(1), 1)
            await group.send(0, range(200))
            await until(lambda: len(handled.of(0)) == 200 and not a.readers.receiver.in_flight)
            await asyncio.sleep(0.6)
            loads = a.readers.loads()
            assert loads.keys() == {group.queue(0), group.queue(1)}
            busy, idle = loads[group.queue(0)], loads[group.queue(1)]
            assert busy.arrival_per_s is not None
            assert busy.arrival_per_s > 0
            assert busy.service_s is not None
            assert busy.busy is not None
            assert 0 < busy.busy <= 1
            # several are handled at once, so that a message costs less of the member's time than it takes
            assert busy.arrival_per_s * busy.service_s == pytest.approx(busy.busy, rel=0.3)
            assert busy.residence_p99_s is not None
            assert busy.residence_p99_s >= 0.01
            assert idle.arrival_per_s is None

    asyncio.run(scenario())
