"""What receivers of logs have in common: a log takes no message back, so what is rejected waits here.

A log knows one position of a group in a partition, not single messages. So what is to be delivered again is kept
at the head, and the position that is stored is the contiguous prefix of *delivered* offsets: everything before the
oldest that is not settled (offsets have gaps, so counting up would get stuck).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace

from flyball.brokers.core.dedup import FinishedIds
from flyball.brokers.core.positions import Partition, settled_positions
from flyball.brokers.core.receiver import BaseReceiver
from flyball.brokers.port import Delivery


class LogReceiver(BaseReceiver):
    """An adapter supplies `_schedule_store`: positions may have moved, store them now or soon.

    `one_channel`: all messages are of the same channel. Their ids alone then tell them apart, and what is
    remembered of a message needs no object that the garbage collector looks at.
    """

    def __init__(self, window: int, dedup_ids: int, *, one_channel: bool) -> None:
        super().__init__(window)
        self._one_channel = one_channel
        self._finished = FinishedIds(dedup_ids)
        self._next_tag = 0
        self._redeliveries: deque[Delivery] = deque()
        self._delivered_ends: dict[Partition, int] = {}
        """The offset after the last one handed out or dropped, of each partition that is ours."""
        self._stored_positions: dict[Partition, int] = {}
        """The position last stored, of each partition that is ours."""
        self._revoked_ends: dict[Partition, int] = {}
        """The offset after the last one that was handed out, of partitions that were revoked."""

    @abstractmethod
    def _schedule_store(self) -> None: ...

    def _fetch_redeliveries(self, limit: int) -> list[Delivery]:
        return [self._redeliveries.popleft() for _ in range(min(limit, len(self._redeliveries)))]

    def _without_repeats(self, deliveries: list[Delivery], now_s: float) -> list[Delivery]:
        """The deliveries without repeats of finished messages; a repeat counts as delivered and settled."""
        if self._revoked_ends:
            deliveries = [self._mark_redelivery(delivery) for delivery in deliveries]
        keys = self._keys(deliveries)
        repeated = self._finished.repeats(keys, now_s)
        if not repeated:
            return deliveries
        return [each for each, key in zip(deliveries, keys, strict=True) if key not in repeated]

    def _keys(self, deliveries: Iterable[Delivery]) -> Sequence[Hashable]:
        """What repeats are recognised by: an id is unique within its channel."""
        if self._one_channel:
            return [each.message.id for each in deliveries]
        return [(each.channel, each.message.id) for each in deliveries]

    def _mark_redelivery(self, delivery: Delivery) -> Delivery:
        """Mark what was handed out before its partition was revoked and came back, perhaps with the server."""
        assert delivery.partition is not None
        assert delivery.offset is not None
        partition = delivery.channel, delivery.partition
        if delivery.offset < self._revoked_ends.get(partition, 0):
            return replace(delivery, redelivered=True, attempt=None)
        self._revoked_ends.pop(partition, None)
        return delivery

    async def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._finished.add(self._keys(deliveries), time.monotonic())
        self._schedule_store()

    async def _return(self, deliveries: Sequence[Delivery], requeue: bool) -> None:
        if not requeue:
            self._schedule_store()
            return
        for delivery in sorted(deliveries, key=lambda each: each.tag, reverse=True):
            attempt = (delivery.attempt or 1) + 1
            self._redeliveries.appendleft(replace(delivery, redelivered=True, attempt=attempt))
        self._notify()

    def _positions(self, unsettled: Iterable[Delivery] | None = None) -> dict[Partition, int]:
        """How far each partition is settled; `unsettled` replaces what is in flight, once that was cleared."""
        open_ = self._in_flight.values() if unsettled is None else unsettled
        return settled_positions(self._delivered_ends, open_, self._redeliveries)

    def _revoke(self, partitions: Collection[Partition]) -> None:
        """Drop partitions that are no longer ours: their new owner gets what is in flight from them."""
        revoked = set(partitions)
        for tag, delivery in list(self._in_flight.items()):
            if (delivery.channel, delivery.partition) in revoked:
                del self._in_flight[tag]
        self._redeliveries = deque(
            each for each in self._redeliveries if (each.channel, each.partition) not in revoked
        )
        for partition in revoked:
            self._revoked_ends[partition] = max(
                self._delivered_ends.pop(partition, 0), self._revoked_ends.get(partition, 0)
            )
            self._stored_positions.pop(partition, None)
        self._notify()
