"""What another program wrote and Flyball cannot decode: delivered as unreadable, and nothing else suffers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from flyball.brokers import Broker, Message, connect
from flyball.brokers.port import Kind
from flyball.consumer.consumer import Consumer
from flyball.testing.contract.base import ContractBase
from flyball.testing.contract.messages import ids, numbered, records


class Foreign(ContractBase):
    async def _mixed(self, broker: Broker, kind: Kind) -> tuple[str, list[Message], int]:
        """A channel with good messages before and behind unreadable ones; these messages, and how many others."""
        channel = await self.channel(broker, kind)
        good = numbered(6)
        await self.send(broker, channel, good[:3])
        count = await asyncio.to_thread(self.write_unreadable, channel)
        await self.send(broker, channel, good[3:])
        return channel, good, count

    def test_unreadable_messages_are_delivered_in_order_and_settled_like_others(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel, good, count = await self._mixed(broker, kind)
                receiver = await self.open(broker, kind, channel)
                got = await self.collect(receiver, 6 + count, ack=False)
                assert [delivery.unreadable is not None for delivery in got] == [False] * 3 + [True] * count + [
                    False
                ] * 3
                assert ids([*got[:3], *got[-3:]]) == ids(good)
                assert all(delivery.channel == channel for delivery in got)
                assert all("\n" not in str(delivery.unreadable) for delivery in got)
                await receiver.nack(got[3])
                (again,) = await self.collect(receiver, 1, ack=False)
                assert (again.unreadable, again.message.body) == (got[3].unreadable, got[3].message.body)
                await receiver.nack(again, requeue=False)
                await receiver.ack(*got)
                await receiver.close()
                second = await self.open(broker, kind, channel)
                await self.expect_nothing(second)
                await second.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_what_is_behind_an_unreadable_message_is_not_committed_past(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel, good, count = await self._mixed(broker, kind)
                receiver = await self.open(broker, kind, channel)
                got = await self.collect(receiver, 4, ack=False)
                await receiver.ack(*got[:3])  # the first unreadable one and all behind it are not settled
                await receiver.close()
                second = await self.open(broker, kind, channel)
                rest = await self.collect(second, count + 3)
                assert [delivery.unreadable is not None for delivery in rest] == [True] * count + [False] * 3
                assert ids(rest[-3:]) == ids(good[3:])
                await second.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_reading_a_log_goes_on_behind_unreadable_records(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.logs, "this broker has no logs")
            log, good, count = await self._mixed(broker, "log")
            got = await records(broker, log, 0, *await broker.bounds(log, 0))
            assert [record.unreadable is not None for record in got] == [False] * 3 + [True] * count + [False] * 3
            assert [record.message.id for record in (*got[:3], *got[-3:])] == ids(good)
            await broker.delete(log)

        self.run(scenario)

    def test_a_consumer_makes_dead_letters_of_unreadable_messages_and_goes_on(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel, good, count = await self._mixed(broker, kind)
                handled: list[str] = []

                async def handle(message: Message, handled: list[str] = handled) -> None:
                    handled.append(message.id)

                where: dict[str, Any] = (
                    {"queue": channel} if kind == "queue" else {"channel": channel, "group": "workers"}
                )
                async with Consumer(self.url(), handler=handle, **where) as consumer:
                    deadline = time.monotonic() + self.arrives_within_s
                    while consumer.stats.acked < 6 + count and time.monotonic() < deadline:
                        await asyncio.sleep(0.01)
                assert sorted(handled) == sorted(ids(good))
                assert (consumer.stats.unreadable, consumer.stats.dead_lettered) == (count, count)
                dead = f"{channel}.dead"
                async with await connect(self.url()) as other:
                    letters_kind: Kind = "queue" if broker.capabilities.queues else "log"
                    receiver = await self.open(other, letters_kind, dead)
                    letters = await self.collect(receiver, count)
                    assert len(letters) == count
                    for letter in letters:
                        assert letter.unreadable is None
                        assert str(letter.message.headers["flyball-error"]).startswith("unreadable: ")
                        assert letter.message.headers["flyball-channel"] == channel
                    await receiver.close()
                    await other.delete(dead)
                await broker.delete(channel)

        self.run(scenario)
