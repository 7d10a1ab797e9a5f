"""Queues of RabbitMQ 4 that the broker hands over by the priorities of its consumers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flyball.brokers import connect
from flyball.brokers.rabbitmq.receiver import RabbitReceiver
from flyball.servers.rabbitmq import RabbitMqNode
from tests.groups.readers.members import GroupUnderTest, Handled, Member, members, until

COUNT = 600


@pytest.fixture
def group(rabbitmq_4: RabbitMqNode, tmp_path: Path) -> GroupUnderTest:
    return GroupUnderTest(rabbitmq_4.url, tmp_path / "groups.db")


async def _stand_by(*standing: Member) -> None:
    for member in standing:
        assert member.readers.switches
        await member.readers.stand_by()


async def _send_until(group: GroupUnderTest, number: int, stop: asyncio.Event) -> int:
    """Publish numbered messages without a pause; how many."""
    sent = 0
    async with await connect(group.url) as broker:
        while not stop.is_set():
            await group.send_through(broker, number, range(sent, sent + 20))
            sent += 20
    return sent


def _count(handled: Handled, member: Member) -> int:
    return sum(name == member.name and queue == 0 for name, queue, _ in handled.numbers)


def test_a_busy_queue_goes_back_and_forth_without_a_release(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled, stop = Handled(), asyncio.Event()
        async with members(group, handled, "a", "b", "c") as (a, b, c):
            await a.readers.take(group.queue(0), 1)
            await a.readers.take(group.queue(1), 1)
            await _stand_by(a, b, c)
            publishing = [asyncio.create_task(_send_until(group, number, stop)) for number in range(2)]
            owner, next_owner = a, b
            for generation in range(2, 8):
                await next_owner.readers.take(group.queue(0), generation)
                passing = asyncio.create_task(owner.readers.pass_on(group.queue(0), 60.0))
                done = _count(handled, next_owner)
                await until(lambda n=next_owner, d=done: _count(handled, n) >= d + 60)  # type: ignore[misc]
                assert await passing
                owner, next_owner = next_owner, owner
            stop.set()
            sent = await asyncio.gather(*publishing)
            for number in range(2):
                await until(lambda n=number: len(handled.of(n)) >= sent[n])  # type: ignore[misc]
                assert handled.of(number) == list(range(sent[number]))
            assert {name for name, queue, _ in handled.numbers if queue == 0} == {"a", "b"}
            assert {name for name, queue, _ in handled.numbers if queue == 1} == {"a"}
            assert a.readers.hand_overs.clean == b.readers.hand_overs.clean == 3
            assert a.readers.hand_overs.forced == b.readers.hand_overs.forced == 0

    asyncio.run(scenario())


def test_without_a_coordinator_another_member_goes_on(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", "b", "c") as (a, b, c):
            await a.readers.take(group.queue(0), 1)
            await b.readers.take(group.queue(0), 2)
            assert await a.readers.pass_on(group.queue(0), 60.0)
            await _stand_by(c, a, b)
            publishing = asyncio.create_task(group.send(0, range(COUNT)))
            await until(lambda: len(handled.by("b")) >= 60)
            await b.close()  # with messages in flight, and no good-bye
            await until(lambda: max(len(handled.by("a")), len(handled.by("c"))) >= 60)
            await (a if handled.by("a") else c).close()
            await until(lambda: set(handled.of(0)) == set(range(COUNT)))
            await publishing
            for member in "abc":
                assert handled.by(member), f"{member} had its turn"
                assert handled.by(member) == sorted(handled.by(member)), "what goes back comes first"

    asyncio.run(scenario())


def test_a_handler_that_does_not_end_is_not_waited_for(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", "b", window=5) as (a, b):
            await a.readers.take(group.queue(0), 1)
            await _stand_by(a, b)
            a.hold.clear()
            await group.send(0, range(40))
            await until(lambda: len(handled.of(0)) == 5)
            await b.readers.take(group.queue(0), 2)
            assert handled.by("b") == []
            assert not await a.readers.pass_on(group.queue(0), 0.2)
            assert a.readers.hand_overs.forced == 1
            await until(lambda: handled.by("b") == list(range(40)))
            a.hold.set()  # the late acknowledgements of the old owner change nothing
            await until(lambda: not b.readers.receiver.in_flight)
            await b.close()
            await group.send(0, [40])  # and it is subscribed as before
            await until(lambda: handled.of(0)[-1] == 40)
            assert handled.by("a") == [*range(5), 40]

    asyncio.run(scenario())


def test_a_wider_window_is_used(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", "b", window=2, work_s=0.001) as (a, b):
            await a.readers.take(group.queue(0), 1)
            await _stand_by(a, b)
            a.hold.clear()
            await group.send(0, range(COUNT))
            await until(lambda: len(handled.of(0)) == 2)
            a.readers.receiver.set_window(40)
            a.hold.set()
            await until(lambda: len(handled.of(0)) == COUNT)
            assert handled.by("a") == list(range(COUNT)), "the broker did not pass it on meanwhile"
            source = a.readers.receiver.source(group.queue(0))  # type: ignore[attr-defined]
            assert isinstance(source.receiver, RabbitReceiver)

            def prefetch() -> int | None:
                receiver = a.readers.receiver.source(group.queue(0)).receiver  # type: ignore[attr-defined]
                assert isinstance(receiver, RabbitReceiver)
                return receiver.fixed_prefetch

            await until(lambda: (prefetch() or 0) >= 40)
            a.hold.clear()
            await group.send(0, range(COUNT, COUNT + 60))
            await until(lambda: a.readers.receiver.in_flight == 40)
            a.hold.set()
            await until(lambda: len(handled.of(0)) == COUNT + 60)
            assert handled.of(0) == list(range(COUNT + 60))

    asyncio.run(scenario())


def test_a_member_that_leaves_settles_what_it_began(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", "b", work_s=0.01) as (a, b):
            for number in range(group.queues):
                await a.readers.take(group.queue(number), 1)
            await _stand_by(a, b)
            for number in range(group.queues):
                await group.send(number, range(200))
            await until(lambda: len(handled.numbers) > 100)
            await a.readers.release_all(60.0)
            assert a.readers.receiver.in_flight == 0
            await until(lambda: len(handled.numbers) >= group.queues * 200)
            for number in range(group.queues):
                assert handled.of(number) == list(range(200)), "each once, in order"
            assert handled.by("b")

    asyncio.run(scenario())
