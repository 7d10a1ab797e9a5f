"""Messages arrive in order and unchanged, whether or not others of their batch fail."""

from __future__ import annotations

import asyncio
import random
from unittest import SkipTest

from flyball.brokers import Broker, Message
from flyball.brokers.port import TooLarge
from flyball.testing.contract.base import ContractBase
from flyball.testing.contract.messages import assert_same, ids, numbered, odd_messages


class Sending(ContractBase):
    def test_messages_arrive_in_order(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(300)
                for at in range(0, 300, 37):
                    await self.send(broker, channel, sent[at : at + 37])
                receiver = await self.open(broker, kind, channel)
                assert ids(await self.collect(receiver, 300)) == ids(sent)
                await self.expect_nothing(receiver)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_results_come_in_the_order_of_the_batch(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(50)
                assert [result.id for result in await self.send(broker, channel, sent)] == ids(sent)
                assert await self.send(broker, channel, []) == []
                await broker.delete(channel)

        self.run(scenario)

    def test_messages_arrive_as_they_were_sent(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = odd_messages()
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel)
                for message, delivery in zip(sent, await self.collect(receiver, len(sent)), strict=True):
                    assert_same(delivery.message, message)
                    assert delivery.channel == channel
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_empty_and_8_mib_bodies(self) -> None:
        async def scenario(broker: Broker) -> None:
            limit = broker.capabilities.max_body_bytes
            self.need(limit is None or limit >= 8 << 20, f"this broker takes bodies up to {limit} bytes")
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                big = random.Random(8).randbytes(8 << 20)
                sent = [Message(b""), Message(big), Message(b"after")]
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel)
                got = await self.collect(receiver, 3)
                assert ids(got) == ids(sent)
                assert [len(delivery.message.body) for delivery in got] == [0, 8 << 20, 5]
                assert got[1].message.body == big
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_one_too_large_message_does_not_fail_the_rest_of_its_batch(self) -> None:
        async def scenario(broker: Broker) -> None:
            limit = broker.capabilities.max_body_bytes
            if limit is None or limit > 64 << 20:
                raise SkipTest(f"a body beyond this broker's limit ({limit}) does not fit a test")
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                good = numbered(4)
                bad = Message(bytes(limit + 1))
                sender = await broker.sender(channel)
                results = await sender.send_batch([*good[:2], bad, *good[2:]])
                assert [result.ok for result in results] == [True, True, False, True, True]
                assert isinstance(results[2].error, TooLarge)
                receiver = await self.open(broker, kind, channel)
                assert ids(await self.collect(receiver, 4)) == ids(good)
                await self.expect_nothing(receiver)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_many_senders_at_once(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                batches = [numbered(25) for _ in range(12)]
                senders = [await broker.sender(channel) for _ in range(4)]
                results = await asyncio.gather(
                    *(senders[at % 4].send_batch(batch) for at, batch in enumerate(batches))
                )
                assert all(result.ok for batch in results for result in batch)
                receiver = await self.open(broker, kind, channel)
                got = ids(await self.collect(receiver, 300))
                assert sorted(got) == sorted(message.id for batch in batches for message in batch)
                for batch in batches:  # whatever the order of the batches, each is in order
                    mine = set(ids(batch))
                    assert [id for id in got if id in mine] == ids(batch)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_iteration_yields_one_message_at_a_time(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(5)
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel)
                got = []
                async for delivery in receiver:
                    got.append(delivery)
                    await receiver.ack(delivery)
                    if len(got) == 5:
                        break
                assert ids(got) == ids(sent)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)
