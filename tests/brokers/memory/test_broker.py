"""memory:// keeps the contract, and a name is one broker within the process."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flyball.brokers import Broker, Message, connect
from flyball.brokers.port import Blocked, NoSuchChannel
from flyball.errors import InvalidValue
from flyball.testing.broker_contract import BrokerContract, ids, numbered, records


class TestMemory(BrokerContract):
    quiet_s = 0.01

    def setup_method(self) -> None:
        self._name = uuid.uuid4().hex

    def url(self) -> str:
        return f"memory://{self._name}"


def test_a_name_is_shared_and_no_name_is_not() -> None:
    async def scenario() -> None:
        name = f"memory://{uuid.uuid4().hex}"
        async with await connect(name) as one, await connect(name) as two, await connect("memory://") as alone:
            await one.declare("jobs")
            sender = await one.sender("jobs")
            sent = numbered(3)
            await sender.send_batch(sent)
            receiver = await two.receiver("jobs")
            assert ids(await receiver.receive()) == ids(sent)
            assert await alone.channels() == []

    asyncio.run(scenario())


def test_a_full_queue_gives_up_after_the_stated_time() -> None:
    async def scenario() -> None:
        async with await connect("memory://?blocked_timeout_s=0.01") as broker:
            await broker.declare("jobs", max_bytes=100)
            sender = await broker.sender("jobs")
            results = await sender.send_batch([Message(bytes(60)) for _ in range(3)])
            assert [result.ok for result in results] == [True, True, False]
            assert isinstance(results[2].error, Blocked)
            assert sender.blocked
            receiver = await broker.receiver("jobs")
            await receiver.ack(*await receiver.receive())
            assert not sender.blocked

    asyncio.run(scenario())


def test_a_full_queue_that_was_deleted_and_declared_again_takes_messages() -> None:
    async def scenario() -> None:
        async with await connect("memory://") as broker:
            await broker.declare("jobs", max_bytes=100)
            sender = await broker.sender("jobs")
            await sender.send_batch([Message(bytes(100))])
            blocked = [sender.blocked]
            waiting = asyncio.create_task(sender.send_batch(numbered(1)))
            await asyncio.sleep(0.01)
            await broker.delete("jobs")
            assert [*blocked, sender.blocked] == [True, False]
            with pytest.raises(NoSuchChannel, match="'jobs'"):
                await waiting
            await broker.declare("jobs", max_bytes=100)
            sent = numbered(3)
            assert all(result.ok for result in await sender.send_batch(sent))
            receiver = await broker.receiver("jobs")
            assert ids(await receiver.receive()) == ids(sent)

    asyncio.run(scenario())


def test_a_full_log_drops_its_oldest() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.declare("log", "log", max_bytes=100)
        sender = await broker.sender("log")
        await sender.send_batch([Message(bytes(30)) for _ in range(10)])
        assert await broker.bounds("log", 0) == (7, 10)
        assert [record.offset for record in await records(broker, "log", 0, 0, 10)] == [7, 8, 9]
        group = await broker.subscribe("log", "g", start="earliest")
        await sender.send_batch([Message(bytes(30)) for _ in range(2)])
        assert [delivery.offset for delivery in await group.receive()] == [9, 10, 11]

    async def main() -> None:
        async with await connect("memory://") as broker:
            await scenario(broker)

    asyncio.run(main())


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(InvalidValue, match="colour"):
        asyncio.run(connect("memory://?colour=red"))


def test_a_group_with_members_misses_nothing_of_a_channel_that_was_made_anew() -> None:
    async def scenario() -> None:
        async with await connect("memory://") as broker:
            await broker.declare("log", "log")
            member = await broker.subscribe("log", "readers")
            await (await broker.sender("log")).send_batch(numbered(2))
            done, returned = await member.receive()
            await broker.delete("log")
            await broker.declare("log", "log")
            sent = numbered(4)
            await (await broker.sender("log")).send_batch(sent)
            await member.ack(done)  # of messages that were deleted: neither counts nor comes back
            await member.nack(returned)
            assert await broker.depth("log", "readers") == 4
            assert ids(await member.receive()) == ids(sent)

    asyncio.run(scenario())
