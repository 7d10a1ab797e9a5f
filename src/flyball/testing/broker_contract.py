"""The one contract suite that every broker adapter passes, unchanged, against its real server.

Subclass it in a test module and say where the broker is:

    class TestMine(BrokerContract):
        def url(self) -> str:
            return "sqlite:///mine.db"

pytest then runs every promise of `flyball.brokers.port`. What a broker cannot do is skipped by its
`capabilities`, with the reason, never by its name. Only what must hold everywhere is asked: order within a
partition, not across; offsets that grow, not that are dense; the same id on repeats, not that there are none
after a crash.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest import SkipTest

from flyball.brokers import Broker, Delivery, Message, Receiver, Record, SendResult, connect
from flyball.brokers.port import BrokerError, HeaderValue, Kind, NoSuchChannel, TooLarge, Unsupported
from flyball.errors import FlyballError, InvalidValue
from flyball.testing import crash

Scenario = Callable[[Broker], Awaitable[None]]


class BrokerContract:
    """Hooks first; then one test a promise. Channel names are unique, so a shared server does no harm."""

    arrives_within_s = 30.0
    """Bound on waiting for what has to come (a group's first join takes seconds on some brokers)."""
    quiet_s = 0.3
    """How long nothing has to come before we believe that nothing comes."""
    full_queue_blocks = True
    """False for a broker whose queues have no byte limit of their own."""

    def url(self) -> str:
        raise NotImplementedError("say which broker: def url(self) -> str")

    def declare_options(self, kind: Kind) -> dict[str, Any]:  # noqa: ARG002  a hook
        """Further arguments of `declare` for channels of this kind."""
        return {}

    # --- helpers ------------------------------------------------------------------------------------------

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            async with await connect(self.url()) as broker:
                await scenario(broker)

        asyncio.run(main())

    def kinds(self, broker: Broker) -> list[Kind]:
        offered: list[Kind] = []
        if broker.capabilities.queues:
            offered.append("queue")
        if broker.capabilities.logs:
            offered.append("log")
        return offered

    def need(self, condition: bool, reason: str) -> None:
        if not condition:
            raise SkipTest(reason)

    async def channel(self, broker: Broker, kind: Kind, **options: Any) -> str:
        name = fresh_name()
        await broker.declare(name, kind, **{**self.declare_options(kind), **options})
        return name

    async def open(self, broker: Broker, kind: Kind, channel: str, window: int = 100) -> Receiver:
        """A receiver that sees everything in the channel: of the queue, or of a group from the beginning."""
        if kind == "queue":
            return await broker.receiver(channel, window=window)
        return await broker.subscribe(channel, "readers", window=window, start="earliest")

    async def collect(self, receiver: Receiver, count: int, ack: bool = True) -> list[Delivery]:
        """The next `count` deliveries, or as many as came in time."""
        got: list[Delivery] = []
        while len(got) < count:
            batch = await receiver.receive(count - len(got), timeout_s=self.arrives_within_s)
            if not batch:
                break
            got += batch
            if ack:
                await receiver.ack(*batch)
        return got

    async def send(self, broker: Broker, channel: str, messages: Sequence[Message]) -> list[SendResult]:
        sender = await broker.sender(channel)
        results = await sender.send_batch(messages)
        await sender.close()
        assert [result.error for result in results] == [None] * len(messages)
        return results

    async def nothing(self, receiver: Receiver) -> None:
        extra = await receiver.receive(100, timeout_s=self.quiet_s)
        assert extra == []

    # --- sending and receiving ----------------------------------------------------------------------------

    def test_order_is_kept(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(300)
                for at in range(0, 300, 37):
                    await self.send(broker, channel, sent[at : at + 37])
                receiver = await self.open(broker, kind, channel)
                assert ids(await self.collect(receiver, 300)) == ids(sent)
                await self.nothing(receiver)
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
                assert [delivery.message.body == message.body for delivery, message in zip(got, sent, strict=True)]
                assert [len(delivery.message.body) for delivery in got] == [0, 8 << 20, 5]
                assert got[1].message.body == big
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_one_too_large_message_does_not_fail_its_neighbours(self) -> None:
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
                await self.nothing(receiver)
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

    def test_iterating_hands_out_one_by_one(self) -> None:
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

    # --- settling -----------------------------------------------------------------------------------------

    def test_acknowledged_is_gone_and_the_rest_returns(self) -> None:
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
                await self.nothing(second)
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
            for delivery in again:  # "may have been seen": a broker that prefetches marks more than was handed out
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
                assert receiver.in_flight == 0
                await self.nothing(receiver)
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
                await self.nothing(second)
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
                await self.nothing(receiver)
                assert receiver.in_flight == 0
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_what_a_killed_process_held_comes_back(self) -> None:
        async def scenario(broker: Broker) -> None:
            self.need(broker.capabilities.shared_between_processes, "lives and dies with this process")
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(40)
                await self.send(broker, channel, sent)
                group = None if kind == "queue" else "readers"
                held = await asyncio.to_thread(crash.hold_and_die, self.url(), channel, group, 10, 4)
                assert held.received == ids(sent[:10])
                assert held.acked == ids(sent[:4])
                receiver = await self.open(broker, kind, channel)
                again = await self.collect(receiver, 36)
                assert sorted(ids(again)) == sorted(ids(sent[4:]))
                await self.nothing(receiver)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    # --- the window ---------------------------------------------------------------------------------------

    def test_window_changes_take_effect_and_are_never_exceeded(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                await self.send(broker, channel, numbered(60))
                receiver = await self.open(broker, kind, channel, window=5)
                got = await self.collect(receiver, 5, ack=False)
                assert len(got) == receiver.in_flight == 5
                await self.nothing(receiver)
                receiver.set_window(8)
                got += await self.collect(receiver, 3, ack=False)
                await self.nothing(receiver)
                assert len(got) == receiver.in_flight == 8
                receiver.set_window(3)  # takes nothing back …
                assert receiver.window == 3
                assert receiver.in_flight == 8
                await receiver.ack(*got[:5])
                await self.nothing(receiver)  # … and hands out nothing until there is room
                await receiver.ack(*got[5:7])
                got += await self.collect(receiver, 2, ack=False)
                await self.nothing(receiver)
                assert receiver.in_flight == 3
                receiver.set_window(0)
                await receiver.ack(*got)
                await self.nothing(receiver)
                receiver.set_window(50)
                assert len(await self.collect(receiver, 50)) == 50
                assert len(set(ids(got))) == 10
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_raising_the_window_wakes_a_waiting_receiver(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                await self.send(broker, channel, numbered(3))
                receiver = await self.open(broker, kind, channel, window=0)
                waiting = asyncio.create_task(receiver.receive(10, timeout_s=self.arrives_within_s))
                await asyncio.sleep(self.quiet_s)
                assert not waiting.done()
                receiver.set_window(2)
                got = await waiting
                assert 1 <= len(got) <= 2
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_random_windows_are_kept(self) -> None:
        seed = 20
        rng = random.Random(seed)

        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(200)
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel, window=1)
                held: list[Delivery] = []
                seen: list[Delivery] = []
                while len(seen) < 200:
                    window = rng.randrange(1, 20)
                    receiver.set_window(window)
                    before = len(held)
                    if before < window:
                        got = await receiver.receive(100, timeout_s=self.arrives_within_s)
                        assert got, f"nothing came after {len(seen)} of 200 (seed {seed})"
                        held += got
                        seen += got
                    assert receiver.in_flight == len(held) <= max(window, before), f"seed {seed}"
                    done = [held.pop(0) for _ in range(rng.randrange(len(held) + 1))]
                    await receiver.ack(*done)
                assert ids(seen) == ids(sent)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    # --- sharing, groups, patterns ------------------------------------------------------------------------

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
            if len(rest) < 20:  # the broker may have given some to the first receiver ahead of time
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
                await self.send(broker, channel, numbered(3))  # before the groups: not theirs
                red = await broker.subscribe(channel, "red")
                blue = await broker.subscribe(channel, "blue")
                sent = numbered(30)
                await self.send(broker, channel, sent)
                assert ids(await self.collect(red, 30)) == ids(sent)
                assert ids(await self.collect(blue, 30)) == ids(sent)
                await self.nothing(red)
                await red.close()
                await blue.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_a_group_goes_on_where_it_stopped(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(30)
                member = await broker.subscribe(channel, "workers")
                await self.send(broker, channel, sent[:20])
                assert ids(await self.collect(member, 20)) == ids(sent[:20])
                await member.close()
                await self.send(broker, channel, sent[20:])  # nobody is there
                member = await broker.subscribe(channel, "workers")
                assert ids(await self.collect(member, 10)) == ids(sent[20:])
                await self.nothing(member)
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
                    await self.nothing(receiver)
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

    # --- logs ---------------------------------------------------------------------------------------------

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

    def test_reading_takes_nothing_away(self) -> None:
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
            sent = [Message(b"%d" % at, key=b"\x00key\xff%d" % (at % 7)) for at in range(210)]
            await self.send(broker, log, sent[:100])
            await self.send(broker, log, sent[100:])
            found: dict[bytes | None, list[str]] = {}
            places: dict[bytes | None, set[int]] = {}
            for partition in range(3):
                for record in await records(broker, log, partition, *await broker.bounds(log, partition)):
                    found.setdefault(record.message.key, []).append(record.message.id)
                    places.setdefault(record.message.key, set()).add(partition)
            assert all(len(partitions) == 1 for partitions in places.values())
            assert len(set.union(*places.values())) > 1
            for at in range(7):
                key = b"\x00key\xff%d" % at
                assert found[key] == [message.id for message in sent if message.key == key]
            await broker.delete(log)

        self.run(scenario)

    def test_repeats_of_a_producer_are_dropped(self) -> None:
        name = fresh_name()
        sent = [Message(b"%d" % at, key=b"%d" % at) for at in range(30)]

        async def first_life(broker: Broker) -> None:
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

        async def second_life(broker: Broker) -> None:
            sender = await broker.sender(name, producer="meter-1")
            assert await sender.last_sequence() == 14
            results = await sender.send_batch([*sent[10:15], *sent[20:]], sequence=10)
            assert [result.duplicate for result in results] == [True] * 5 + [False] * 10
            found = await records(broker, name, 0, *await broker.bounds(name, 0))
            assert [record.message.id for record in found] == ids(sent)
            await broker.delete(name)

        self.run(first_life)
        self.run(second_life)

    # --- administration -----------------------------------------------------------------------------------

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
                    await self.nothing(receiver)
                    await receiver.close()
                await broker.delete(channel)
                await broker.delete(channel)  # no error if it does not exist
                assert channel not in {info.name for info in await broker.channels()}

        self.run(scenario)

    async def eventually(self, look: Callable[[], Awaitable[int]], wanted: int) -> int:
        """Some brokers count a little late."""
        deadline = asyncio.get_running_loop().time() + self.arrives_within_s
        while (seen := await look()) != wanted and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        return seen

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

    # --- back-pressure ------------------------------------------------------------------------------------

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
            assert sender.blocked or filling.done(), "a full queue took everything"
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


def fresh_name() -> str:
    return f"contract.{uuid.uuid4().hex[:12]}"


def numbered(count: int) -> list[Message]:
    return [Message(b"%d" % at) for at in range(count)]


def odd_messages() -> list[Message]:
    """One of everything a message can carry."""
    headers: dict[str, HeaderValue] = {
        "text": "Grüße ✓",
        "empty": "",
        "int": -(2**62),
        "zero": 0,
        "float": 0.1,
        "whole": 3.0,
        "yes": True,
        "no": False,
        "bytes": bytes(range(256)),
        "no bytes": b"",
    }
    return [
        Message(b"plain"),
        Message(bytes(range(256)), key=bytes(range(255, -1, -1))),
        Message(b"", key=b""),
        Message(b"{}", headers=headers, content_type="application/json"),
        Message(b"old", event_time_s=-86400.5),
        Message(b"now", event_time_s=1_790_000_000.123456, key=b"k", content_type="text/plain; charset=utf-8"),
        Message(b"given id", id="order-0001/ü"),
    ]


def assert_same(got: Message, sent: Message) -> None:
    assert (got.id, got.key, got.body, got.content_type) == (sent.id, sent.key, sent.body, sent.content_type)
    assert dict(got.headers) == dict(sent.headers)
    assert {name: type(value) for name, value in got.headers.items()} == {
        name: type(value) for name, value in sent.headers.items()
    }
    assert got.event_time_s == sent.event_time_s


def ids(items: Sequence[Message] | Sequence[Delivery]) -> list[str]:
    return [item.message.id if isinstance(item, Delivery) else item.id for item in items]


async def records(broker: Broker, log: str, partition: int, start: int, stop: int) -> list[Record]:
    return [record async for chunk in broker.read(log, partition, start, stop) for record in chunk]
