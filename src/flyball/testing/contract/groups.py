"""Receivers of a queue or group share its messages, groups do not; patterns choose channels."""

from __future__ import annotations

import asyncio
from typing import Any

from flyball.brokers import Broker, Message, Receiver
from flyball.testing.contract.base import ContractBase
from flyball.testing.contract.messages import fresh_name, ids, numbered


class Groups(ContractBase):
    def test_receivers_of_a_queue_share_its_messages(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.queues, "this broker has no queues")
            channel = await self.channel(broker, "queue")
            sent = numbered(40)
            await self.send(broker, channel, sent)
            first = await broker.receiver(channel, window=10)
            second = await broker.receiver(channel, window=10)
            one = await self.collect(first, 10, ack=False)
            two = await self.collect(second, 10, ack=False)
            assert len(one) == len(two) == 10
            await first.ack(*one)
            await second.ack(*two)
            rest = await self.collect(second, 20)
            if len(rest) < 20:  # the broker may have delivered some to the first receiver ahead of time
                rest += await self.collect(first, 20 - len(rest))
            assert sorted(ids([*one, *two, *rest])) == sorted(ids(sent))
            await first.close()
            await second.close()
            await broker.delete(channel)

        self.run(scenario)

    def test_every_group_gets_every_message(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                await self.send(broker, channel, numbered(3))  # before the groups exist: not for them
                red = await broker.subscribe(channel, "red")
                blue = await broker.subscribe(channel, "blue")
                sent = numbered(30)
                await self.send(broker, channel, sent)
                assert ids(await self.collect(red, 30)) == ids(sent)
                assert ids(await self.collect(blue, 30)) == ids(sent)
                await self.expect_nothing(red)
                await red.close()
                await blue.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_a_group_continues_where_it_stopped(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(30)
                member = await broker.subscribe(channel, "workers")
                await self.send(broker, channel, sent[:20])
                assert ids(await self.collect(member, 20)) == ids(sent[:20])
                await member.close()
                await self.send(broker, channel, sent[20:])  # the group has no members
                member = await broker.subscribe(channel, "workers")
                assert ids(await self.collect(member, 10)) == ids(sent[20:])
                await self.expect_nothing(member)
                await member.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_members_of_a_group_share(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                options: dict[str, Any] = {"partitions": 4} if kind == "log" else {}
                channel = await self.channel(broker, kind, **options)
                members = [await broker.subscribe(channel, "workers") for _ in range(2)]
                sent = [Message(b"x", key=b"%d" % at) for at in range(200)]
                missing = set(ids(sent))

                async def work(member: Receiver, missing: set[str] = missing) -> None:
                    deadline = asyncio.get_running_loop().time() + self.arrives_within_s
                    while missing and asyncio.get_running_loop().time() < deadline:
                        got = await member.receive(10, timeout_s=0.2)
                        await member.ack(*got)
                        missing.difference_update(ids(got))

                tasks = [asyncio.create_task(work(member)) for member in members]
                await self.send(broker, channel, sent)
                await asyncio.gather(*tasks)
                assert not missing
                for member in members:
                    await member.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_patterns_choose_channels(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                base = fresh_name()
                names = [f"{base}{tail}" for tail in ("", ".lyon.load", ".paris.load", ".paris.rain", ".a.b.load")]
                for name in names:
                    await broker.declare(name, kind, **self.declare_options(kind))
                wanted = {
                    f"{base}.*.load": names[1:3],
                    f"{base}.#": names,
                    f"{base}.#.load": [*names[1:3], names[4]],
                }
                receivers = {
                    pattern: await broker.subscribe(pattern, f"g{at}") for at, pattern in enumerate(wanted)
                }
                sent = {name: Message(name.encode()) for name in names}
                for name, message in sent.items():
                    await self.send(broker, name, [message])
                for pattern, receiver in receivers.items():
                    got = await self.collect(receiver, len(wanted[pattern]))
                    assert {delivery.channel: delivery.message.id for delivery in got} == {
                        name: sent[name].id for name in wanted[pattern]
                    }
                    await self.expect_nothing(receiver)
                    await receiver.close()
                for name in names:
                    await broker.delete(name)

        self.run(scenario)

    def test_a_pattern_covers_channels_declared_later(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                base = fresh_name()
                receiver = await broker.subscribe(f"{base}.*", "early")
                await broker.declare(f"{base}.late", kind, **self.declare_options(kind))
                sent = numbered(3)
                await self.send(broker, f"{base}.late", sent)
                assert ids(await self.collect(receiver, 3)) == ids(sent)
                await receiver.close()
                await broker.delete(f"{base}.late")

        self.run(scenario)

    def test_the_same_id_in_two_channels_is_two_messages(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                base = fresh_name()
                names = [f"{base}.{word}" for word in ("orders", "invoices")]
                for name in names:
                    await broker.declare(name, kind, **self.declare_options(kind))
                receiver = await broker.subscribe(f"{base}.*", "all")
                got = []
                for name in names:  # the first one is acknowledged before the second is sent
                    await self.send(broker, name, [Message(name.encode(), id="17")])
                    got += await self.collect(receiver, 1)
                assert [(each.channel, each.message.body) for each in got] == [
                    (name, name.encode()) for name in names
                ]
                await receiver.close()
                for name in names:
                    await broker.delete(name)

        self.run(scenario)
