"""Messages arrive in order and unchanged, whether or not others of their batch fail or a call is cancelled."""

from __future__ import annotations

import asyncio
import enum
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any
from unittest import SkipTest

import numpy as np

from flyball.brokers import Broker, Message, Sender
from flyball.brokers.port import HeaderValue, TooLarge, Unconfirmed, UnfitMessage
from flyball.testing.contract.base import ContractBase
from flyball.testing.contract.messages import (
    assert_same,
    extreme_messages,
    ids,
    numbered,
    odd_messages,
    records,
    unfit_messages,
)


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

    def test_messages_at_the_limits_arrive_as_they_were_sent(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = extreme_messages()
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel)
                for message, delivery in zip(sent, await self.collect(receiver, len(sent)), strict=True):
                    assert_same(delivery.message, message)
                    assert delivery.unreadable is None
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_values_of_other_types_arrive_as_plain_ones(self) -> None:
        class Text(str):
            __slots__ = ()

        class Level(enum.IntEnum):
            HIGH = 3

        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                headers: Any = {
                    Text("text"): Text("a"),
                    "level": Level.HIGH,
                    "float": np.float64(1.5),
                    "single": np.float32(0.5),
                    "int": np.int16(7),
                    "bool": np.bool_(True),
                    "bytes": np.bytes_(b"b"),
                }
                odd = Message(
                    np.bytes_(b"body"), Text("an id"), None, headers, np.float64(2.5), Text("text/plain")
                )
                plain: dict[str, HeaderValue] = {
                    "text": "a",
                    "level": 3,
                    "float": 1.5,
                    "single": 0.5,
                    "int": 7,
                    "bool": True,
                    "bytes": b"b",
                }
                await self.send(broker, channel, [odd, Message(b"after", event_time_s=3)])
                receiver = await self.open(broker, kind, channel)
                first, after = await self.collect(receiver, 2)
                assert_same(first.message, Message(b"body", "an id", None, plain, 2.5, "text/plain"))
                assert after.message.event_time_s == 3.0
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_one_unfit_message_does_not_fail_the_rest_of_its_batch(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                unfit = unfit_messages()
                good = numbered(len(unfit) + 1)
                batch = [good[0], *itertools.chain(*zip(unfit, good[1:], strict=True))]
                sender = await broker.sender(channel)
                results = await sender.send_batch(batch)
                assert [result.error for result in results[::2]] == [None] * len(good)
                assert [type(result.error) for result in results[1::2]] == [UnfitMessage] * len(unfit)
                (alone,) = await sender.send_batch(unfit[:1])
                assert isinstance(alone.error, UnfitMessage)
                receiver = await self.open(broker, kind, channel)
                assert ids(await self.collect(receiver, len(good))) == ids(good)
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

    def test_a_cancelled_batch_can_be_sent_again(self) -> None:
        """Whenever the calls were cancelled: nothing counts as stored that is not, nor is anything stored twice
        where the log drops repeats."""
        seed = 14
        rng = random.Random(seed)

        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind, **({"partitions": 3} if kind == "log" else {}))
                sender = await broker.sender(channel, producer="meter" if kind == "log" else None)
                sent = [Message(b"%d" % at * 100, key=b"%d" % at if at % 2 else None) for at in range(600)]
                began_s = time.monotonic()
                await self.send_numbered(sender, sent[:100], 0)
                usual_s = time.monotonic() - began_s
                for first in range(100, 600, 100):
                    halves = [(sent[at : at + 50], at) for at in (first, first + 50)]
                    calls = [asyncio.create_task(sender.send_batch(half, sequence=at)) for half, at in halves]
                    for call in calls if rng.random() < 0.7 else calls[:1]:
                        await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, usual_s))))
                        call.cancel()
                    await asyncio.wait(calls)
                    for half, at in halves:
                        await self.send_numbered(sender, half, at)
                if kind == "log":
                    stored = [
                        record.message.id
                        for partition in range(3)
                        for record in await records(
                            broker, channel, partition, *await broker.bounds(channel, partition)
                        )
                    ]
                    assert set(stored) == set(ids(sent)), f"seed {seed}"
                    assert len(stored) == len(sent) or not broker.capabilities.dedup, f"seed {seed}"
                else:
                    receiver = await self.open(broker, kind, channel)
                    missing = set(ids(sent))
                    while missing:
                        got = await self.collect(receiver, 1)
                        assert got, f"{len(missing)} messages are missing (seed {seed})"
                        missing -= set(ids(got))
                    await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    async def send_numbered(self, sender: Sender, messages: Sequence[Message], sequence: int) -> None:
        """Send until everything is confirmed."""
        deadline = asyncio.get_running_loop().time() + self.arrives_within_s
        while True:
            results = await sender.send_batch(messages, sequence=sequence)
            if all(result.ok for result in results):
                return
            assert all(result.ok or isinstance(result.error, Unconfirmed) for result in results)
            assert asyncio.get_running_loop().time() < deadline, f"still unconfirmed: {results[0].error}"
            await asyncio.sleep(0.01)
