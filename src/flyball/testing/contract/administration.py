"""Declaring, counting, listing, errors, and blocking when full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from flyball.brokers import Broker, Message
from flyball.brokers.port import BrokerError, Kind, NoSuchChannel, Unsupported
from flyball.errors import FlyballError, InvalidValue
from flyball.testing.contract.base import ContractBase
from flyball.testing.contract.messages import fresh_name, ids, numbered


class Administration(ContractBase):
    def test_depth_purge_list_delete(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                assert await broker.depth(channel) == 0
                assert await broker.oldest_age_s(channel) is None
                await self.send(broker, channel, numbered(12))
                assert await self.eventually(lambda c=channel: broker.depth(c), 12) == 12  # type: ignore[misc]  # mypy does not infer a lambda's default
                age = await broker.oldest_age_s(channel)
                assert age is None or age >= 0
                listed = {info.name: info for info in await broker.channels()}
                assert listed[channel].kind == kind
                if kind == "queue":
                    assert await broker.purge(channel) in (12, None)
                    assert await broker.depth(channel) == 0
                    receiver = await broker.receiver(channel)
                    await self.expect_nothing(receiver)
                    await receiver.close()
                await broker.delete(channel)
                await broker.delete(channel)  # no error if it does not exist
                assert channel not in {info.name for info in await broker.channels()}

        self.run(scenario)

    async def eventually(self, read: Callable[[], Awaitable[int]], expected: int) -> int:
        """Read until the value is as expected, or the time is over: some brokers count a little late."""
        deadline = asyncio.get_running_loop().time() + self.arrives_within_s
        while (value := await read()) != expected and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        return value

    def test_a_groups_depth_is_what_it_has_not_acknowledged(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                member = await broker.subscribe(channel, "lag")
                await self.send(broker, channel, numbered(9))
                await self.collect(member, 4)

                async def lag(channel: str = channel) -> int:
                    return await broker.depth(channel, "lag")

                assert await self.eventually(lag, 5) == 5
                await member.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_declaring_again_is_harmless_and_another_kind_an_error(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(2)
                await self.send(broker, channel, sent)
                await broker.declare(channel, kind, **self.declare_options(kind))
                receiver = await self.open(broker, kind, channel)
                assert ids(await self.collect(receiver, 2)) == ids(sent)
                await receiver.close()
                other: Kind = "log" if kind == "queue" else "queue"
                await self.refused(broker.declare(channel, other), FlyballError)
                await broker.delete(channel)

        self.run(scenario)

    def test_a_kind_the_broker_does_not_have_is_refused(self) -> None:
        async def scenario(broker: Broker) -> None:
            missing = [kind for kind in ("queue", "log") if kind not in self.kinds(broker)]
            self.need(bool(missing), "this broker has both kinds of channel")
            for kind in missing:
                await self.refused(broker.declare(fresh_name(), kind), Unsupported)  # type: ignore[arg-type]  # a str of two values

        self.run(scenario)

    def test_impossible_declarations_are_refused_alike(self) -> None:
        async def scenario(broker: Broker) -> None:
            name = fresh_name()
            for kind in self.kinds(broker):
                await self.refused(broker.declare(name, kind, partitions=0), InvalidValue, name)
                await self.refused(broker.declare(name, kind, max_bytes=0), InvalidValue, name)
                await self.refused(broker.declare(name, kind, retention_s=0.0), InvalidValue, name)
            await self.refused(broker.depth(name), NoSuchChannel, name)

        self.run(scenario)

    def test_unknown_channels_are_named_in_the_error(self) -> None:
        async def scenario(broker: Broker) -> None:
            name = fresh_name()
            await self.refused(broker.depth(name), NoSuchChannel, name)
            if broker.capabilities.queues:
                await self.refused(broker.receiver(name), NoSuchChannel, name)
            if broker.capabilities.logs:
                await self.refused(broker.bounds(name, 0), NoSuchChannel, name)
            try:
                sender = await broker.sender(name)
                errors: list[BaseException | None] = [
                    result.error for result in await sender.send_batch(numbered(2))
                ]
            except NoSuchChannel as error:
                errors = [error]
            assert all(isinstance(error, NoSuchChannel) and name in str(error) for error in errors)

        self.run(scenario)

    def test_bad_names_are_refused(self) -> None:
        async def scenario(broker: Broker) -> None:
            for name in ("", "two words", "a..b", ".a", "über", "x" * 201, "a/b"):
                await self.refused(broker.declare(name, self.kinds(broker)[0]), InvalidValue)
            await self.refused(broker.sender("two words"), InvalidValue)
            await self.refused(broker.subscribe("a.%.b", "g"), InvalidValue)

        self.run(scenario)

    async def refused(self, action: Awaitable[object], error_type: type[BaseException], text: str = "") -> None:
        raised: BaseException | None = None
        try:
            await action
        except error_type as error:
            raised = error
        assert raised is not None, f"no {error_type.__name__} was raised"
        assert text in str(raised)
        assert "\n" not in str(raised)

    def test_a_full_queue_blocks_its_senders_and_loses_nothing(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.queues, "this broker has no queues")
            self.need(self.full_queue_blocks, "this broker's queues have no byte limit")
            channel = await self.channel(broker, "queue", max_bytes=64 << 10)
            sender = await broker.sender(channel)
            stored: list[str] = []

            async def fill() -> None:
                for _ in range(400):
                    batch = [Message(bytes(2048)) for _ in range(4)]
                    results = await sender.send_batch(batch)
                    stored.extend(result.id for result in results if result.ok)
                    assert all(isinstance(result.error, BrokerError) for result in results if not result.ok)
                    if not all(result.ok for result in results):
                        return

            filling = asyncio.create_task(fill())
            deadline = asyncio.get_running_loop().time() + self.arrives_within_s
            while not (sender.blocked or filling.done()) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.01)
            assert sender.blocked or filling.done(), "a full queue accepted everything"
            assert len(stored) < 1600
            receiver = await broker.receiver(channel)
            got: list[str] = []
            while batch := await receiver.receive(100, timeout_s=1.0):
                await receiver.ack(*batch)
                got += ids(batch)
            await filling
            while batch := await receiver.receive(100, timeout_s=1.0):
                await receiver.ack(*batch)
                got += ids(batch)
            assert set(stored) <= set(got)
            await receiver.close()
            await broker.delete(channel)

        self.run(scenario)

    def test_a_receiver_goes_on_with_a_queue_that_was_deleted_and_declared_again(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.queues, "this broker has no queues")
            channel = await self.channel(broker, "queue")
            receiver = await broker.receiver(channel)
            await self.send(broker, channel, numbered(3))
            in_flight = await self.collect(receiver, 3, ack=False)
            await broker.delete(channel)
            raised: BrokerError | None = None
            deadline = asyncio.get_running_loop().time() + self.arrives_within_s
            while raised is None:
                assert asyncio.get_running_loop().time() < deadline, "nobody says that the queue was deleted"
                try:
                    assert await receiver.receive(1, timeout_s=0.1) == []
                except NoSuchChannel as error:
                    raised = error
            assert channel in str(raised)
            await receiver.ack(*in_flight)  # of messages that were deleted
            await broker.declare(channel, "queue", **self.declare_options("queue"))
            sent = numbered(5)
            await self.send(broker, channel, sent)
            got: list[str] = []
            while len(got) < 5:
                assert asyncio.get_running_loop().time() < deadline, f"{len(got)} of 5 came"
                with suppress(NoSuchChannel):
                    batch = await receiver.receive(5, timeout_s=0.1)
                    await receiver.ack(*batch)
                    got += ids(batch)
            assert got == ids(sent)
            assert await self.eventually(lambda: broker.depth(channel), 0) == 0
            await receiver.close()
            await broker.delete(channel)

        self.run(scenario)
