"""Partitions of Kafka: positions under a generation, mirrored to Kafka's group."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flyball.brokers import connect
from flyball.brokers.kafka.broker import KafkaBroker
from flyball.errors import InvalidValue
from flyball.groups.readers.open import open_readers
from flyball.store import open_database
from flyball.store.positions import Positions
from tests.groups.readers.members import GroupUnderTest, Handled, members, until


@pytest.fixture
def group(kafka_url: str, tmp_path: Path) -> GroupUnderTest:
    return GroupUnderTest(kafka_url, tmp_path / "groups.db")


def test_an_owner_of_before_loses_its_partition_and_stores_nothing(group: GroupUnderTest) -> None:
    """As after a pause: its session has expired by its own clock, and it has not noticed in any other way."""

    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", "b", window=5) as (a, b):
            await a.readers.take(group.queue(0), 1)
            await a.readers.take(group.queue(1), 1)
            a.hold.clear()
            await group.send(0, range(20))
            await until(lambda: len(handled.of(0)) == 5)
            a.readers.receiver.may_hand_out = lambda: False
            await b.readers.take(group.queue(0), 2)
            await until(lambda: handled.by("b") == list(range(20)) and not b.readers.receiver.in_flight)
            a.hold.set()
            await until(lambda: a.readers.hand_overs.forced == 1 and not a.readers.receiver.in_flight)
            assert a.readers.loads().keys() == {group.queue(1)}
            a.readers.receiver.may_hand_out = lambda: True
            await group.send(1, range(10))
            await until(lambda: len(handled.of(1)) == 10)
            assert handled.of(0) == [*range(5), *range(20)], "the old owner reads no more of it"

    asyncio.run(scenario())


def test_tools_of_kafka_see_the_lag(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a") as (a,):
            for number in range(group.queues):
                await a.readers.take(group.queue(number), 1)
                await group.send(number, range(30))
            await until(lambda: len(handled.numbers) == 90 and not a.readers.receiver.in_flight)
        async with await connect(group.url) as broker:
            assert await broker.depth(group.topic, f"flyball-{group.topic}") == 0
            assert await broker.depth(group.topic, "another") == 90
        await group.send(0, [30])
        async with await connect(group.url) as broker:
            assert await broker.depth(group.topic, f"flyball-{group.topic}") == 1

    asyncio.run(scenario())


def test_without_a_stored_position_the_one_at_kafka_counts(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a") as (a,):
            await a.readers.take(group.queue(0), 1)
            await group.send(0, range(30))
            await until(lambda: len(handled.of(0)) == 30 and not a.readers.receiver.in_flight)
        group.store.unlink()
        async with members(group, handled, "b") as (b,):
            await b.readers.take(group.queue(0), 1)
            await group.send(0, range(30, 40))
            await until(lambda: len(handled.of(0)) >= 40)
            assert handled.of(0) == list(range(40))

    asyncio.run(scenario())


def test_a_group_may_begin_at_the_end(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        await group.prepare()
        await group.send(0, range(10))
        async with await connect(group.url) as broker:
            readers = open_readers(broker, group.topic, f"sqlite:///{group.store}", start="latest")
            await readers.take(group.queue(0), 1)
            await group.send(0, [10])
            (delivery,) = await readers.receiver.receive(5, timeout_s=60)
            assert delivery.message.body == b"10"
            await readers.receiver.ack(delivery)
            assert await readers.release(group.queue(0), 60)
            await readers.close()
        database = open_database(f"sqlite:///{group.store}")
        assert Positions(database, group.topic).claim(group.queue(0), 2) == 11
        database.close()

    asyncio.run(scenario())


def test_a_rejected_message_is_not_skipped_by_a_hand_over(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        await group.prepare()
        await group.send(0, range(4))
        async with await connect(group.url) as broker, await connect(group.url) as other:
            readers = open_readers(broker, group.topic, f"sqlite:///{group.store}", window=4)
            await readers.take(group.queue(0), 1)
            found: list[Any] = []
            while len(found) < 4:
                found += await readers.receiver.receive(4, timeout_s=60)
            await readers.receiver.ack(found[0], found[2], found[3])
            await readers.receiver.nack(found[1])
            assert await readers.release(group.queue(0), 60)
            await readers.close()
            next_readers = open_readers(other, group.topic, f"sqlite:///{group.store}", window=4)
            await next_readers.take(group.queue(0), 2)
            again = await next_readers.receiver.receive(4, timeout_s=60)
            assert again[0].message.id == found[1].message.id
            await next_readers.close()

    asyncio.run(scenario())


def test_the_number_of_partitions_is_kafkas(group: GroupUnderTest) -> None:
    async def scenario() -> None:
        await group.prepare()
        async with await connect(group.url) as broker:
            assert isinstance(broker, KafkaBroker)
            readers = open_readers(broker, group.topic, f"sqlite:///{group.store}")
            assert await readers.queues({group.topic: None}) == {group.topic: [0, 1, 2]}
            with pytest.raises(InvalidValue, match="has 3 partitions at the broker, not 8"):
                await readers.queues({group.topic: 8})
            await readers.close()

    asyncio.run(scenario())
