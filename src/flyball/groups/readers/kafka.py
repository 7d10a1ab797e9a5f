"""Kafka's partitions: one client reads those that the member owns, from positions in the group's store.

A position is stored under the generation of its grant, and an owner of a newer generation has claimed the
partition before it reads. So a member that was silent for too long and wakes up stores nothing any more, and drops
the partition. The positions are also committed to Kafka's group `flyball-NAME`, for tools that show the lag.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from functools import partial

from flyball.brokers.kafka.assigned_receiver import AssignedReceiver
from flyball.brokers.kafka.broker import KafkaBroker
from flyball.brokers.port import Delivery, Start
from flyball.errors import InvalidValue
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers, QueueLoad
from flyball.groups.readers.releases import Release, Releases
from flyball.groups.receiver import ASK_AGAIN_S, GroupReceiver
from flyball.store.positions import Positions
from flyball.store.protocol import Database, Fenced
from flyball.store.worker_pool import WorkerPool

log = logging.getLogger("flyball.groups")


class PartitionsReceiver(GroupReceiver):
    """The messages of all partitions that the member owns."""

    def __init__(self, receiver: AssignedReceiver) -> None:
        super().__init__(receiver.window)
        self._receiver = receiver

    @property
    def occupied(self) -> int:
        return self._receiver.occupied

    @property
    def parked(self) -> int:
        return self._receiver.parked

    @property
    def round_trip_s(self) -> float:
        return self._receiver.round_trip_s

    def count_round_trip(self) -> bool:
        return self._receiver.count_round_trip()

    def _on_window(self) -> None:
        self._receiver.set_window(self._window)

    async def receive(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Delivery]:
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            if not self.may_hand_out():
                await asyncio.sleep(ASK_AGAIN_S if left_s is None else min(ASK_AGAIN_S, left_s))
            elif deliveries := await self._receiver.receive(max_messages, left_s):
                if self.may_hand_out():
                    self._count(deliveries)
                    return deliveries
                await self._receiver.nack(*deliveries)
            if end_s is not None and time.monotonic() >= end_s:
                break
        return []

    def _count(self, deliveries: list[Delivery]) -> None:
        parts: dict[Queue, list[Delivery]] = {}
        for delivery in deliveries:
            assert delivery.partition is not None
            parts.setdefault((delivery.channel, delivery.partition), []).append(delivery)
        for queue, part in parts.items():
            self._hand_out(queue, self._receiver, part)

    def _on_free_slot(self) -> None:
        """The client has noticed."""

    def drop_flights(self, queue: Queue) -> None:
        self._drop_flights(queue)
        self._meters.pop(queue, None)

    async def withdraw(self) -> list[Delivery]:
        for partition in list(self._receiver.assigned):
            self._receiver.stop_reading(partition)
        return []

    async def close(self) -> None:
        self._closed = True
        await self._receiver.close()


class KafkaReaders:
    """See `port.QueueReaders`. `start`: where a group begins that has stored nothing."""

    def __init__(
        self, broker: KafkaBroker, group: str, database: Database, *, window: int = 100, start: Start = "earliest"
    ) -> None:
        self._broker, self._start = broker, start
        self._kafka_group = f"flyball-{group}"
        self._database, self._positions = database, Positions(database, group)
        self._workers = WorkerPool(1, user="group")
        self._generations: dict[Queue, int] = {}
        self._client = broker.assigned_receiver(
            self._kafka_group, window=window, store=self._store, on_loss=self._lose
        )
        self.receiver = PartitionsReceiver(self._client)
        self._releases = Releases(self.receiver.wake_waiters)

    @property
    def switches(self) -> bool:
        return False

    @property
    def hand_overs(self) -> HandOvers:
        return self._releases.hand_overs

    async def queues(self, topics: Mapping[str, int | None]) -> dict[str, list[int]]:
        found = {}
        for topic, count in topics.items():
            partitions = await self._broker.partitions(topic)
            if count is not None and count != partitions:
                raise InvalidValue(
                    f"the topic {topic!r} has {partitions} partitions at the broker, not {count} as the group's "
                    "topics say: leave the number to the broker, or correct it"
                )
            found[topic] = list(range(partitions))
        return found

    async def take(self, queue: Queue, generation: int) -> None:
        if queue in self._releases:
            await self.release(queue, 0.0)
        if self._generations.get(queue) == generation:
            return
        try:
            offset = await self._workers.run("receive", self._positions.claim, queue, generation)
        except Fenced as error:
            log.warning("partition not taken: %s", error)
            return
        self._generations[queue] = generation
        if queue not in self._client.assigned:
            self._client.assign(queue, await self._first_offset(queue) if offset is None else offset)

    async def _first_offset(self, queue: Queue) -> int:
        """Where to begin if the store has no position: at that of Kafka's group, or where a new group begins."""
        committed = await self._broker.committed(self._kafka_group, [queue])
        if queue in committed:
            return committed[queue]
        if self._start == "latest":
            return (await self._broker.ends([queue]))[queue]
        return (await self._broker.bounds(*queue))[0]

    async def _store(self, offsets: Mapping[Queue, int]) -> Collection[Queue]:
        generations = dict(self._generations)
        return await self._workers.run("publish", self._positions.store, offsets, generations)

    def _lose(self, queue: Queue) -> None:
        """Another member has claimed a partition that this one still read."""
        log.warning("partition %d of %s has another owner by now: what is in flight is not counted", *queue[::-1])
        self._generations.pop(queue, None)
        if queue not in self._releases:
            self._releases.count(clean=False)
        self.receiver.drop_flights(queue)

    async def release(self, queue: Queue, deadline_s: float) -> bool:
        if queue not in self._generations:
            return True
        return await self._releases.run(queue, deadline_s, partial(self._release, queue))

    async def _release(self, queue: Queue, release: Release) -> bool:
        self._client.stop_reading(queue)
        settled = await self.receiver.wait_until(
            lambda: not self.receiver.in_flight_of(queue), lambda: release.deadline_s
        )
        stored = await self._client.drop(queue)
        self.receiver.drop_flights(queue)
        self._generations.pop(queue, None)
        return settled and stored

    async def pass_on(self, queue: Queue, deadline_s: float) -> bool:
        return await self.release(queue, deadline_s)

    async def stand_by(self) -> None:
        """Kafka hands nothing over by itself."""

    async def release_all(self, deadline_s: float) -> None:
        await asyncio.gather(*(self.release(queue, deadline_s) for queue in list(self._generations)))

    def loads(self) -> Mapping[Queue, QueueLoad]:
        return self.receiver.loads(self._generations)

    async def depth(self) -> int:
        """Messages that wait in the partitions that are owned."""
        ends = await self._broker.ends(list(self._generations))
        unsettled = sum(max(0, end - (self._client.position(queue) or 0)) for queue, end in ends.items())
        return max(0, unsettled - self.receiver.in_flight)

    async def close(self) -> None:
        await self._releases.cancel()
        await self.receiver.close()
        await asyncio.to_thread(self._workers.close)
        await asyncio.to_thread(self._database.close)
