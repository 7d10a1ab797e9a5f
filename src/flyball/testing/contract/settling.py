"""Acknowledged messages are removed; others are delivered again, with the same id."""

from __future__ import annotations

import asyncio
import random

from flyball.brokers import Broker
from flyball.testing import crash
from flyball.testing.contract.base import ContractBase
from flyball.testing.contract.messages import ids, numbered


class Settling(ContractBase):
    def test_acknowledged_messages_are_removed_and_the_rest_returns(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(20)
                await self.send(broker, channel, sent)
                first = await self.open(broker, kind, channel, window=10)
                got = await self.collect(first, 10, ack=False)
                assert ids(got) == ids(sent[:10])
                await first.ack(*got[:6])
                await first.close()
                second = await self.open(broker, kind, channel)
                again = await self.collect(second, 14)
                assert sorted(ids(again)) == sorted(ids(sent[6:]))
                await self.expect_nothing(second)
                await second.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_a_queue_remembers_acks_out_of_order(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.queues, "this broker has no queues")
            channel = await self.channel(broker, "queue")
            sent = numbered(30)
            await self.send(broker, channel, sent)
            first = await broker.receiver(channel, window=20)
            got = await self.collect(first, 20, ack=False)
            done = random.Random(3).sample(got, 11)
            for delivery in done:
                await first.ack(delivery)
            await first.close()
            second = await broker.receiver(channel)
            again = await self.collect(second, 19)
            assert sorted(ids(again)) == sorted(set(ids(sent)) - set(ids(done)))
            for delivery in again:  # a broker that prefetches marks more than was handed out
                assert delivery.redelivered or delivery.message.id not in ids(got)
            await second.close()
            await broker.delete(channel)

        self.run(scenario)

    def test_nack_delivers_again_with_the_same_id(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(6)
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel)
                got = await self.collect(receiver, 6, ack=False)
                assert not any(delivery.redelivered for delivery in got)
                await receiver.ack(*got[:2], *got[4:])
                await receiver.nack(got[2], got[3])
                again = await self.collect(receiver, 2)
                assert sorted(ids(again)) == sorted(ids(got[2:4]))
                assert all(delivery.redelivered for delivery in again)
                assert all(delivery.attempt in (None, 2) for delivery in again)
                first = {delivery.message.id: delivery.message for delivery in got}
                assert all(delivery.message == first[delivery.message.id] for delivery in again)
                assert receiver.in_flight == 0
                await self.expect_nothing(receiver)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_nack_without_requeue_drops(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(4)
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel)
                got = await self.collect(receiver, 4, ack=False)
                await receiver.nack(*got[:2], requeue=False)
                await receiver.ack(*got[2:])
                await receiver.close()
                second = await self.open(broker, kind, channel)
                await self.expect_nothing(second)
                await second.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_settling_twice_is_harmless(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(3)
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel)
                got = await self.collect(receiver, 3)
                await receiver.ack(*got)
                await receiver.nack(*got)
                await self.expect_nothing(receiver)
                assert receiver.in_flight == 0
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_unacknowledged_messages_of_a_killed_process_return(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.shared_between_processes, "this broker exists in this process only")
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(40)
                await self.send(broker, channel, sent)
                group = None if kind == "queue" else "readers"
                ledger = await asyncio.to_thread(crash.receive_and_kill, self.url(), channel, group, 10, 4)
                assert ledger.received == ids(sent[:10])
                assert ledger.acked == ids(sent[:4])
                receiver = await self.open(broker, kind, channel)
                again = await self.collect(receiver, 36)
                assert sorted(ids(again)) == sorted(ids(sent[4:]))
                await self.expect_nothing(receiver)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)
