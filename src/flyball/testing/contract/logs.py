"""A log can be read again by offset, exactly; repeats of a producer are dropped."""

from __future__ import annotations

from flyball.brokers import Broker, Message
from flyball.testing.contract.base import ContractBase
from flyball.testing.contract.messages import assert_same, fresh_name, ids, numbered, odd_messages, records


class Logs(ContractBase):
    def test_offsets_are_replayed_exactly(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.logs, "this broker has no logs")
            log = await self.channel(broker, "log")
            sent = odd_messages() + numbered(200)
            for at in range(0, len(sent), 41):
                await self.send(broker, log, sent[at : at + 41])
            first, end = await broker.bounds(log, 0)
            everything = await records(broker, log, 0, first, end)
            assert [record.message.id for record in everything] == ids(sent)
            for message, record in zip(sent, everything, strict=True):
                assert_same(record.message, message)
            offsets = [record.offset for record in everything]
            assert offsets == sorted(set(offsets))
            assert first <= offsets[0]
            assert offsets[-1] < end
            assert all(record.partition == 0 for record in everything)
            for low, high in ((0, 1), (17, 120), (100, 101), (150, len(sent) - 1)):
                part = await records(broker, log, 0, offsets[low], offsets[high])
                assert [record.offset for record in part] == offsets[low:high]
                assert [record.message.id for record in part] == ids(sent[low:high])
            assert await records(broker, log, 0, offsets[5], offsets[5]) == []
            await broker.delete(log)

        self.run(scenario)

    def test_reading_removes_nothing(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.logs, "this broker has no logs")
            log = await self.channel(broker, "log")
            sent = numbered(20)
            await self.send(broker, log, sent)
            bounds = await broker.bounds(log, 0)
            assert await records(broker, log, 0, *bounds) == await records(broker, log, 0, *bounds)
            receiver = await self.open(broker, "log", log)
            assert ids(await self.collect(receiver, 20)) == ids(sent)
            assert [record.message.id for record in await records(broker, log, 0, *bounds)] == ids(sent)
            await receiver.close()
            await broker.delete(log)

        self.run(scenario)

    def test_a_key_stays_in_its_partition_in_order(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.logs, "this broker has no logs")
            log = await self.channel(broker, "log", partitions=3)
            await broker.declare(log, "log")  # whoever needs fewer partitions can work with it
            sent = [Message(b"%d" % at, key=b"\x00key\xff%d" % (at % 7)) for at in range(210)]
            await self.send(broker, log, sent[:100])
            await self.send(broker, log, sent[100:])
            ids_by_key: dict[bytes | None, list[str]] = {}
            partitions_by_key: dict[bytes | None, set[int]] = {}
            for partition in range(3):
                for record in await records(broker, log, partition, *await broker.bounds(log, partition)):
                    ids_by_key.setdefault(record.message.key, []).append(record.message.id)
                    partitions_by_key.setdefault(record.message.key, set()).add(partition)
            assert all(len(partitions) == 1 for partitions in partitions_by_key.values())
            assert len(set.union(*partitions_by_key.values())) > 1
            for at in range(7):
                key = b"\x00key\xff%d" % at
                assert ids_by_key[key] == [message.id for message in sent if message.key == key]
            await broker.delete(log)

        self.run(scenario)

    def test_repeats_of_a_producer_are_dropped(self) -> None:
        name = fresh_name()
        sent = [Message(b"%d" % at, key=b"%d" % at) for at in range(30)]

        async def first_run(broker: Broker) -> None:
            self.need(broker.capabilities.logs and broker.capabilities.dedup, "this broker's logs keep repeats")
            await broker.declare(name, "log", **self.declare_options("log"))
            sender = await broker.sender(name, producer="meter-1")
            assert await sender.last_sequence() is None
            await sender.send_batch(sent[:10], sequence=0)
            again = await sender.send_batch(sent[5:15], sequence=5)
            assert [result.duplicate for result in again] == [True] * 5 + [False] * 5
            assert all(result.ok for result in again)
            other = await broker.sender(name, producer="meter-2")
            results = await other.send_batch(sent[15:20], sequence=0)
            assert not any(result.duplicate for result in results)
            assert (await sender.last_sequence(), await other.last_sequence()) == (14, 4)

        async def second_run(broker: Broker) -> None:
            sender = await broker.sender(name, producer="meter-1")
            assert await sender.last_sequence() == 14
            results = await sender.send_batch([*sent[10:15], *sent[20:]], sequence=10)
            assert [result.duplicate for result in results] == [True] * 5 + [False] * 10
            stored = await records(broker, name, 0, *await broker.bounds(name, 0))
            assert [record.message.id for record in stored] == ids(sent)
            await broker.delete(name)

        self.run(first_run)
        self.run(second_run)
