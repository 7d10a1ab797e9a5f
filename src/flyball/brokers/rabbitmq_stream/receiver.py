"""Receiving from RabbitMQ streams as a member of a group.

The server sends a stream in whole chunks, each for one credit. A few chunks per partition wait here undecoded; an
entry is decoded when it is handed out, and a credit is returned when its chunk is used up. So the window is
exact, and what waits is bounded by the credits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from rstream import schema
from rstream.constants import OffsetType

from flyball.backoff import delays_s
from flyball.brokers.core.log_receiver import LogReceiver
from flyball.brokers.core.positions import Partition
from flyball.brokers.port import BrokerError, Delivery
from flyball.brokers.rabbitmq_stream.chunks import Chunk, to_chunk
from flyball.brokers.rabbitmq_stream.codec import decode
from flyball.brokers.rabbitmq_stream.connection import (
    FAILURES,
    StreamClient,
    StreamSettings,
    offset_spec,
    stream_name,
)
from flyball.brokers.rabbitmq_stream.group import GroupMembership

_CREDIT = 3
_WRITE_S = 1.0
_DISCOVER_S = 1.0
_RELEASE_S = 10.0


class _Subscription:
    """One partition that is ours: its subscription and the chunks that wait."""

    __slots__ = ("at", "chunk", "id", "partition", "waiting")

    def __init__(self, partition: Partition, id: int, position: int) -> None:
        self.partition = partition
        self.id = id
        self.at = position
        self.chunk: Chunk | None = None
        self.waiting: deque[Chunk] = deque()


class StreamReceiver(LogReceiver):
    """One member of a group. `find_logs` lists the logs that match a pattern now."""

    def __init__(
        self,
        settings: StreamSettings,
        group: str,
        window: int,
        find_logs: Callable[[], Awaitable[Mapping[str, int]]] | None,
    ) -> None:
        super().__init__(window, settings.dedup_ids)
        self._settings = settings
        self._find_logs = find_logs
        self._loop = asyncio.get_running_loop()
        self._membership = GroupMembership(settings, group, self)
        self._client: StreamClient | None = None
        self._subscriptions: dict[Partition, _Subscription] = {}
        self._by_id: dict[int, _Subscription] = {}
        self._last_id = -1
        self._storing: asyncio.Task[None] | None = None
        self._unsaved = False
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, logs: Mapping[str, int], starts: Mapping[Partition, int]) -> None:
        await asyncio.to_thread(self._membership.start, logs, starts)
        if self._find_logs is not None:
            self._start(self._discover(self._find_logs, set(logs)))

    # --- called by the group's thread -------------------------------------------------------------------------

    def on_gain(self, partition: Partition, position: int) -> None:
        self._loop.call_soon_threadsafe(lambda: self._start(self._begin(partition, position)))

    def on_release(self, partition: Partition) -> int | None:
        if self._closed:
            return None
        with suppress(TimeoutError):
            return asyncio.run_coroutine_threadsafe(self._stop_reading(partition), self._loop).result(_RELEASE_S)
        return None

    def on_loss(self) -> None:
        self._loop.call_soon_threadsafe(self._drop_all)

    # --- on the event loop ------------------------------------------------------------------------------------

    def _start(self, work: object) -> None:
        if self._closed:
            work.close()  # type: ignore[attr-defined]  # a coroutine that will not run
            return
        task = self._loop.create_task(work)  # type: ignore[arg-type, var-annotated]  # the same
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, partition: Partition, position: int) -> None:
        """Read a partition: subscribe, retrying while the server is away, until it is revoked or we are closed."""
        self._last_id = (self._last_id + 1) % 256
        subscription = _Subscription(partition, self._last_id, position)
        self._subscriptions[partition] = self._by_id[subscription.id] = subscription
        self._delivered_ends[partition] = position
        await self._subscribe(subscription)

    async def _subscribe(self, subscription: _Subscription) -> None:
        for delay_s in delays_s(1000, longest_s=2.0):
            if self._closed or self._subscriptions.get(subscription.partition) is not subscription:
                return
            try:
                client = await self._connected()
                stream = stream_name(*subscription.partition)
                await client.subscribe(
                    stream, subscription.id, offset_spec(OffsetType.OFFSET, subscription.at), _CREDIT
                )
                return
            except (BrokerError, *FAILURES):
                await asyncio.sleep(delay_s)

    async def _connected(self) -> StreamClient:
        async with self._opening:
            if self._client is None or not self._client.is_connection_alive():
                client = await StreamClient.open_to(self._settings, self._on_connection_loss)
                client.add_handler(schema.Deliver, self._deliver, name="0")
                await client.run_queue_listener_task(0, self._deliver)
                self._client = client
            return self._client

    def _on_connection_loss(self) -> None:
        """The stream connection broke; partitions stay ours. Chunks that wait stay valid: continue after them."""
        self._client = None
        for subscription in self._subscriptions.values():
            self._start(self._subscribe(subscription))

    def _deliver(self, frame: schema.Deliver) -> None:
        subscription = self._by_id.get(frame.subscription_id)
        if subscription is None:
            return
        chunk = to_chunk(frame, subscription.at)
        subscription.at = max(subscription.at, frame.chunk_first_offset + frame.num_records)
        if chunk.entries:
            subscription.waiting.append(chunk)
            self._notify()
        else:
            self._credit(subscription)

    def _credit(self, subscription: _Subscription) -> None:
        client = self._client
        if client is not None and client.is_connection_alive():
            self._start(client.credit(subscription.id, 1))

    async def _fetch(self, limit: int) -> Sequence[Delivery]:
        if self._redeliveries:
            return self._fetch_redeliveries(limit)
        deliveries: list[Delivery] = []
        for subscription in self._subscriptions.values():
            while subscription.waiting and len(deliveries) < limit:
                self._decode(subscription, limit - len(deliveries), deliveries)
        if not deliveries:
            return deliveries
        fresh = self._without_repeats(deliveries, time.monotonic())
        if len(fresh) < len(deliveries):
            self._schedule_store()
            self._notify()
        return fresh

    def _decode(self, subscription: _Subscription, limit: int, into: list[Delivery]) -> None:
        chunk = subscription.waiting[0]
        log, number = subscription.partition
        entries, offset, tag = chunk.entries[:limit], chunk.first, self._next_tag
        for raw in entries:
            into.append(Delivery(decode(raw, log, offset), log, tag, False, 1, number, offset))
            offset += 1
            tag += 1
        self._next_tag, self._delivered_ends[subscription.partition] = tag, offset
        if len(entries) == len(chunk.entries):
            subscription.waiting.popleft()
            self._credit(subscription)
        else:
            chunk.entries = chunk.entries[limit:]
            chunk.first = offset

    async def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        await super()._acknowledge(deliveries)
        # Acknowledged means: not delivered again, also if this process is killed right after.
        if self._storing is not None:
            await asyncio.wait([self._storing])

    def _schedule_store(self) -> None:
        """Store positions; what settles while they are being written goes together into the next write."""
        self._unsaved = True
        if self._storing is None:
            self._storing = self._loop.create_task(self._store())

    async def _store(self) -> None:
        try:
            while self._unsaved:
                self._unsaved = False
                positions = self._positions()
                changed = {
                    partition: at
                    for partition, at in positions.items()
                    if at != self._stored_positions.get(partition)
                }
                if changed:
                    self._stored_positions.update(changed)
                    await self._write(changed)
        finally:
            self._storing = None

    async def _write(self, positions: Mapping[Partition, int]) -> None:
        written = asyncio.Event()
        self._membership.store(positions, lambda: self._loop.call_soon_threadsafe(written.set))
        # With a lost connection the partitions are lost too: waiting longer would not help.
        with suppress(TimeoutError):
            async with asyncio.timeout(_WRITE_S):
                await written.wait()

    async def _stop_reading(self, partition: Partition) -> int | None:
        """Stop, because another member gets this partition; returns the position where it continues."""
        subscription = self._subscriptions.pop(partition, None)
        if subscription is None:
            return None
        self._by_id.pop(subscription.id, None)
        position = self._positions()[partition]
        self._revoke({partition})
        if self._client is not None and self._client.is_connection_alive():
            with suppress(*FAILURES):
                await self._client.unsubscribe(subscription.id)
        return position

    def _drop_all(self) -> None:
        for subscription in list(self._subscriptions.values()):
            self._start(self._forget_subscription(subscription))
        self._revoke(set(self._subscriptions))
        self._subscriptions.clear()
        self._by_id.clear()

    async def _forget_subscription(self, subscription: _Subscription) -> None:
        if self._client is not None and self._client.is_connection_alive():
            with suppress(*FAILURES):
                await self._client.unsubscribe(subscription.id)

    async def _discover(self, find_logs: Callable[[], Awaitable[Mapping[str, int]]], known: set[str]) -> None:
        while not self._closed:
            await asyncio.sleep(_DISCOVER_S)
            with suppress(BrokerError):
                for log, partitions in (await find_logs()).items():
                    if log not in known:
                        known.add(log)
                        self._membership.add(log, partitions)

    async def _release(self, unsettled: Sequence[Delivery]) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._storing is not None:
            self._storing.cancel()
        positions = self._positions(unsettled)
        await asyncio.to_thread(self._membership.stop, positions)
        if self._client is not None:
            await self._client.abandon()
