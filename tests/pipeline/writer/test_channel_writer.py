"""Attempts at one task, one after the other or at once, in any order of the rows: a log shows each row once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.brokers import Broker, Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import Kind, NoSuchChannel, Unreachable
from flyball.pipeline.policy.appending import WRITE_HEADER, MessageIds, WriteTask
from flyball.pipeline.writer.channel_writer import ChannelWriter, wait_for_broker
from flyball.servers.rabbitmq import RabbitMqNode


async def attempt(
    broker: Broker, url: str, log: str, task: WriteTask, bodies: Sequence[bytes], stop: int, piece: int
) -> ChannelWriter:
    """Write the rows in pieces; give up after `stop` rows, as a task that is killed does."""
    ids = MessageIds(task.mark)
    messages = [Message(body, ids.derive(body, body[:1]), key=body[:1]) for body in bodies]
    writer = ChannelWriter(broker, url, log, task, outage_s=30.0, exactly_once=True)
    await writer.open(None, 1)
    for first in range(0, stop, piece):
        assert await writer.append(messages[first : min(first + piece, stop)]) == []
    if stop == len(bodies):
        await writer.finish()
    await writer.close()
    return writer


def stored(url: str, log: str) -> Counter[bytes]:
    with open_log_reader(url, log) as reader:
        return Counter(
            body
            for partition in range(reader.partitions())
            for chunk in reader.read_bodies(partition, 0, reader.bounds(partition)[1])
            for body in chunk.bodies
        )


async def new_log(url: str, partitions: int) -> str:
    log = f"sink-{uuid4().hex}"
    async with await connect(url) as broker:
        await broker.declare(log, "log", partitions=partitions)
    return log


async def check_attempts(url: str, partitions: int, seed: int, *, shuffled: bool) -> None:
    """Batches whose attempts are given up at random points, between messages of somebody else."""
    rng = random.Random(seed)
    log = await new_log(url, partitions)
    expected: Counter[bytes] = Counter()
    async with await connect(url) as broker:
        others = await broker.sender(log)
        for batch in range(3):
            task = WriteTask("query", 0, batch)
            bodies = [b"%d row %d" % (rng.randrange(9), rng.randrange(60)) for _ in range(rng.randrange(1, 200))]
            expected.update(bodies)
            for last in (False, False, True):
                order = rng.sample(bodies, len(bodies)) if shuffled else bodies
                stop = len(bodies) if last else rng.randrange(len(bodies) + 1)
                await attempt(broker, url, log, task, order, stop, rng.choice((1, 7, 64)) if stop < 60 else 64)
                foreign = b"other %d" % rng.randrange(10**9)
                expected[foreign] += 1
                await others.send_batch([Message(foreign, key=foreign)])
    assert stored(url, log) == expected


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), partitions=st.integers(1, 4), shuffled=st.booleans())
def test_an_embedded_log_has_every_row_once_after_attempts_that_were_given_up(
    tmp_path_factory: pytest.TempPathFactory, seed: int, partitions: int, shuffled: bool
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('sink') / 'broker.db'}"
    asyncio.run(check_attempts(url, partitions, seed, shuffled=shuffled))


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_has_every_row_once_after_attempts_that_were_given_up(
    rabbitmq: RabbitMqNode, partitions: int, shuffled: bool
) -> None:
    for seed in range(3):
        asyncio.run(check_attempts(rabbitmq.stream_url, partitions, seed, shuffled=shuffled))


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_topic_has_every_row_once_after_attempts_that_were_given_up(
    kafka_url: str, partitions: int, shuffled: bool
) -> None:
    asyncio.run(check_attempts(kafka_url, partitions, 5, shuffled=shuffled))


async def check_at_once(url: str, partitions: int) -> None:
    """A speculative attempt, or one that was given up and does not know it, writes at the same time."""
    log = await new_log(url, partitions)
    bodies = [b"%d row %d" % (number % 9, number) for number in range(2_000)]
    task = WriteTask("query", 0, 0)
    async with await connect(url) as one, await connect(url) as two:
        await asyncio.gather(
            attempt(one, url, log, task, bodies, len(bodies), 100),
            attempt(two, url, log, task, bodies, len(bodies), 70),
        )
    assert stored(url, log) == Counter(bodies)


@pytest.mark.parametrize("partitions", [1, 3])
def test_two_attempts_at_once_store_every_row_once(
    tmp_path: Path, rabbitmq: RabbitMqNode, partitions: int
) -> None:
    asyncio.run(check_at_once(f"sqlite:///{tmp_path / 'broker.db'}", partitions))
    asyncio.run(check_at_once(rabbitmq.stream_url, partitions))


def test_messages_with_ids_of_the_user_are_recognised_too(tmp_path: Path) -> None:
    url, task = f"sqlite:///{tmp_path / 'broker.db'}", WriteTask("query", 0, 4)
    messages = [Message(b"x", f"order-{number}", headers={WRITE_HEADER: task.mark}) for number in range(20)]

    async def run() -> str:
        log = await new_log(url, 1)
        async with await connect(url) as broker:
            for part in (messages[:13], messages[::-1]):
                writer = ChannelWriter(broker, url, log, task, outage_s=1.0, exactly_once=True)
                await writer.open(None, 1)
                await writer.append(part)
                await writer.finish()
            assert (writer.sent, writer.repeated) == (7, 13)
            records = [record async for chunk in broker.read(log, 0, 0, 99) for record in chunk]
        assert Counter(record.message.id for record in records) == Counter(message.id for message in messages)
        return log

    asyncio.run(run())


@given(st.lists(st.binary(max_size=2), max_size=30), st.randoms())
def test_ids_do_not_depend_on_the_order_of_rows(bodies: list[bytes], rng: random.Random) -> None:
    def derived(rows: list[bytes]) -> Counter[tuple[bytes, str]]:
        ids = MessageIds("mark")
        return Counter((row, ids.derive(row)) for row in rows)

    ids = derived(bodies)
    assert ids == derived(rng.sample(bodies, len(bodies)))
    assert len({id for _, id in ids}) == len(bodies)


async def check_outage(url: str, node: RabbitMqNode, kind: Kind) -> None:
    """The broker is killed while rows are written, and comes back after a while."""
    channel = f"sink-{uuid4().hex}"
    task, bodies = WriteTask("query", 0, 0), [b"row %d" % number for number in range(3_000)]
    ids = MessageIds(task.mark)
    messages = [Message(body, ids.derive(body)) for body in bodies]
    async with await connect(url) as broker:
        writer = ChannelWriter(broker, url, channel, task, outage_s=300.0, exactly_once=True)
        await writer.open(kind, 1)
        outage: asyncio.Task[None] | None = None
        for first in range(0, len(messages), 100):
            if first == 1_000:
                outage = asyncio.create_task(kill_and_start(node))
                await asyncio.sleep(0.02)
            assert await writer.append(messages[first : first + 100]) == []
        await writer.finish()
        assert outage is not None
        await outage
        if kind == "log":
            assert stored(url, channel) == Counter(bodies)
            return
        receiver = await broker.receiver(channel, window=9_000)
        found: dict[str, bytes] = {}
        while len(found) < len(bodies):
            for delivery in await receiver.receive(1_000):
                found[delivery.message.id] = delivery.message.body
        assert Counter(found.values()) == Counter(bodies)


async def kill_and_start(node: RabbitMqNode) -> None:
    await asyncio.to_thread(node.kill)
    await asyncio.sleep(2)
    await asyncio.to_thread(node.start)


def test_a_task_waits_for_a_broker_that_is_away(own_rabbitmq: RabbitMqNode) -> None:
    asyncio.run(check_outage(own_rabbitmq.stream_url, own_rabbitmq, "log"))
    asyncio.run(check_outage(own_rabbitmq.url, own_rabbitmq, "queue"))


def test_a_task_that_waited_long_enough_fails(tmp_path: Path) -> None:
    tries = 0

    async def away() -> None:
        nonlocal tries
        tries += 1
        raise Unreachable("nobody answers")

    with pytest.raises(Unreachable, match="nobody answers"):
        asyncio.run(wait_for_broker(away, outage_s=0.2))
    assert tries > 1
    with pytest.raises(NoSuchChannel):
        asyncio.run(no_such_channel_is_no_outage(f"sqlite:///{tmp_path / 'broker.db'}"))


async def no_such_channel_is_no_outage(url: str) -> None:
    async with await connect(url) as broker:
        writer = ChannelWriter(broker, url, "nowhere", WriteTask("query", 0, 0), outage_s=600.0, exactly_once=True)
        await wait_for_broker(lambda: writer.open(None, 1), outage_s=600.0)
