"""Receiving from partitions that somebody else chose: no member of Kafka's group, and no rebalancing by Kafka.

Kafka does not notice when two such clients read one partition. So positions are stored by `store`, which refuses
those of a partition that has another owner by now; such a partition is dropped. What was stored is also committed
to a group of Kafka, so that its tools show the lag.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from flyball.brokers.core.positions import Partition
from flyball.brokers.kafka.config import KafkaSettings
from flyball.brokers.kafka.receiver import CLOSE_S, KafkaReceiver
from flyball.brokers.port import Delivery
from flyball.errors import FlyballError
from flyball.futures import wait_at_most

logger = logging.getLogger("flyball.brokers")  # `log` is a log of messages here

_STORE_S = 0.05  # positions are stored so often, at most


class AssignedReceiver(KafkaReceiver):
    """Reads the partitions of `assign`, without pausing those that it has already.

    `store` stores positions and returns the partitions that it refused; `on_loss` is called for each of these.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        window: int,
        store: Callable[[Mapping[Partition, int]], Awaitable[Collection[Partition]]],
        on_loss: Callable[[Partition], None],
    ) -> None:
        super().__init__(settings, group, window, topics=(), find_topics=None, starts={})
        self._store, self._on_loss = store, on_loss
        self._assigned: dict[Partition, int] = {}  # and where reading began
        self._unread: dict[
            Partition, int
        ] = {}  # offsets of which nothing was handled, of partitions that are left
        self._store_lock = asyncio.Lock()
        self._storing: asyncio.Task[None] | None = None

    @property
    def assigned(self) -> Collection[Partition]:
        return self._assigned.keys()

    def assign(self, partition: Partition, offset: int) -> None:
        """Read a partition from an offset on."""
        if partition not in self._assigned:
            self._revoke([partition])
            self._assigned[partition] = offset
            self._consumer.incremental_assign([TopicPartition(*partition, offset)])
            self._notify()

    def stop_reading(self, partition: Partition) -> None:
        """Hand out nothing more of a partition; what is in flight can still be settled."""
        if self._assigned.pop(partition, None) is not None:
            with suppress(KafkaException):
                self._consumer.incremental_unassign([TopicPartition(*partition)])
        back = [each for each in self._redeliveries if (each.channel, each.partition) == partition]
        if back:
            self._unread[partition] = min(each.offset for each in back if each.offset is not None)
            self._redeliveries = deque(
                each for each in self._redeliveries if (each.channel, each.partition) != partition
            )

    async def drop(self, partition: Partition) -> bool:
        """Store how far a partition was read and forget it; False if that could not be stored."""
        self.stop_reading(partition)
        refused = await self._store_positions()
        is_stored = partition not in refused and partition not in self._new_positions()
        self._revoke([partition])
        self._unread.pop(partition, None)
        return is_stored

    def position(self, partition: Partition) -> int | None:
        """The offset before which everything is settled."""
        return self._positions().get(partition, self._assigned.get(partition))

    def _positions(self, unsettled: Iterable[Delivery] | None = None) -> dict[Partition, int]:
        positions = super()._positions(unsettled)
        for partition, offset in self._unread.items():
            if partition in positions:
                positions[partition] = min(positions[partition], offset)
        return positions

    def _rejoin(self, *, classic: bool) -> None:
        positions = {partition: self.position(partition) for partition in self._assigned}
        super()._rejoin(classic=classic)
        self._consumer.incremental_assign(
            [TopicPartition(*partition, offset or 0) for partition, offset in positions.items()]
        )

    # --- positions ----------------------------------------------------------------------------------------------

    def _commit(self, revoked: Iterable[Partition] | None = None) -> None:  # noqa: ARG002  Kafka revokes nothing
        if self._storing is None or self._storing.done():
            self._storing = self._loop.create_task(self._store_soon())

    async def _store_soon(self) -> None:
        if self._new_positions():
            await asyncio.sleep(_STORE_S)
            await self._store_positions()

    def _new_positions(self) -> dict[Partition, int]:
        return {
            partition: offset
            for partition, offset in self._positions().items()
            if offset > self._stored_positions.get(partition, -1)
        }

    async def _store_positions(self) -> Collection[Partition]:
        """Store what has moved; the partitions that have another owner, which are dropped."""
        async with self._store_lock:
            offsets = self._new_positions()
            if not offsets:
                return ()
            try:
                refused = await self._store(offsets)
            except FlyballError as error:
                logger.warning("positions cannot be stored yet: %s", error)
                return ()
            stored = {partition: offset for partition, offset in offsets.items() if partition not in refused}
            self._stored_positions.update(stored)
            if stored:
                with suppress(KafkaException):
                    self._consumer.commit(offsets=_offsets(stored), asynchronous=True)
        for partition in refused:
            self.stop_reading(partition)
            self._revoke([partition])
            self._unread.pop(partition, None)
            self._on_loss(partition)
        return refused

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The next position follows anyway: Kafka's copy is for people."""

    async def _release(self, unsettled: Sequence[Delivery]) -> None:
        self._poll_task.cancel()
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
        offsets = self._positions(unsettled)
        self._delivered_ends.clear()
        try:
            refused = await self._store(offsets) if offsets else ()
        except FlyballError as error:
            logger.warning("positions were not stored, so that some messages are read again: %s", error)
            refused = offsets.keys()
        stored = {partition: offset for partition, offset in offsets.items() if partition not in refused}
        # A broker that does not answer does not keep us: the thread ends later.
        with suppress(TimeoutError):
            await wait_at_most(asyncio.to_thread(self._leave, _offsets(stored)), CLOSE_S)


def _offsets(positions: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
