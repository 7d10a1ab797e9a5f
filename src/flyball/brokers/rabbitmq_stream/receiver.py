"""Receiving from RabbitMQ streams as a member of a group.

The server sends a stream in whole chunks, each for one credit. A few chunks per partition wait here undecoded; an
entry is decoded when it is handed out, and a credit is returned when its chunk is used up. So the window is
exact, and what waits is bounded by the credits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from rstream import schema
from rstream.constants import OffsetType

from flyball.backoff import ENDLESS, ReconnectDelay, delays_s
from flyball.brokers.core.log_receiver import LogReceiver
from flyball.brokers.core.positions import Partition
from flyball.brokers.port import BrokerError, Delivery
from flyball.brokers.rabbitmq_stream.chunks import Chunk, ChunkMark, bounds, is_other_stream, to_chunk
from flyball.brokers.rabbitmq_stream.codec import decode
from flyball.brokers.rabbitmq_stream.connection import (
    FAILURES,
    StreamClient,
    StreamSettings,
    offset_spec,
    stream_name,
)
from flyball.brokers.rabbitmq_stream.group import GroupMembership

logger = logging.getLogger(__name__)  # `log` is a log of messages here

_CREDIT = 3
_WRITE_S = 1.0
_DISCOVER_S = 1.0
_RELEASE_S = 10.0
_CHECK_S = 2.0


class _Subscription:
    """One partition that is ours: its subscription and the chunks that wait."""

    __slots__ = ("at", "checked", "client", "id", "last", "partition", "waiting")

    def __init__(self, partition: Partition, id: int, position: int) -> None:
        self.partition = partition
        self.id = id
        self.at = position
        self.client: StreamClient | None = None
        """The connection on which the server sends it; None: not subscribed yet."""
        self.last: ChunkMark | None = None
        """The last chunk that came."""
        self.checked = True
        """Whether it is known that the server sends the stream in which `at` is a position."""
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
        super().__init__(window, settings.dedup_ids, one_channel=find_logs is None)
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
        self._reconnect_delay = ReconnectDelay()
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
        for delay_s in delays_s(ENDLESS, longest_s=2.0):
            if self._closed or self._subscriptions.get(subscription.partition) is not subscription:
                return
            client: StreamClient | None = None
            try:
                client = await self._connected()
                stream = stream_name(*subscription.partition)
                # From one before: by that chunk a stream that was declared again is recognised.
                subscription.checked = subscription.at == 0
                start = max(subscription.at - 1, 0)
                await client.subscribe(stream, subscription.id, offset_spec(OffsetType.OFFSET, start), _CREDIT)
                if client is self._client:  # else it was lost meanwhile
                    subscription.client = client
                    if not subscription.checked:
                        self._start(self._check_end(subscription, client))
                    return
            except TimeoutError:
                # Its connection may be dead without a sign of it: only another one shows.
                if client is not None:
                    await self._drop_client(client)
            except (BrokerError, *FAILURES):
                pass
            await asyncio.sleep(delay_s)

    async def _connected(self) -> StreamClient:
        async with self._opening:
            if self._client is None or not self._client.is_connection_alive():
                await asyncio.sleep(self._reconnect_delay.remaining_s(time.monotonic()))
                client = await StreamClient.open_to(self._settings, self._on_connection_loss)
                client.add_handler(schema.Deliver, self._deliver, name="0")
                await client.run_queue_listener_task(0, self._deliver)
                self._client = client
                self._reconnect_delay.opened(time.monotonic())
            return self._client

    def _on_connection_loss(self, client: StreamClient) -> None:
        """The stream connection broke; partitions stay ours. Chunks that wait stay valid: continue after them."""
        if self._client is client:
            self._client = None
            self._reconnect_delay.lost(time.monotonic())
        for subscription in self._subscriptions.values():
            if subscription.client is client:  # else it is being subscribed already
                subscription.client = None
                self._start(self._subscribe(subscription))

    async def _drop_client(self, client: StreamClient) -> None:
        self._on_connection_loss(client)
        await client.abandon()

    def _deliver(self, frame: schema.Deliver) -> None:
        subscription = self._by_id.get(frame.subscription_id)
        if subscription is None:
            return
        first, end = frame.chunk_first_offset, frame.chunk_first_offset + frame.num_records
        if not subscription.checked:
            subscription.checked = True
            if is_other_stream(subscription.at, subscription.last, first, end, frame.timestamp):
                self._begin_again(subscription)
                return
        subscription.last = first, frame.timestamp
        chunk = to_chunk(frame, subscription.at)
        subscription.at = max(subscription.at, end)
        if chunk.entries:
            subscription.waiting.append(chunk)
            self._notify()
        else:
            self._credit(subscription)

    async def _check_end(self, subscription: _Subscription, client: StreamClient) -> None:
        """Begin again if the stream ends before our position: then the server sends nothing that shows it."""
        log, number = subscription.partition
        while True:
            await asyncio.sleep(_CHECK_S)
            if subscription.checked or subscription.client is not client or self._closed:
                return
            with suppress(BrokerError, *FAILURES):
                _, end = await bounds(self._settings, log, number, None)
                current = self._subscriptions.get(subscription.partition) is subscription
                if current and 0 < end < subscription.at:
                    self._begin_again(subscription)
                    return

    def _begin_again(self, subscription: _Subscription) -> None:
        """Read from the beginning: the log was deleted, with what waits here of it, and declared again."""
        log, number = subscription.partition
        logger.warning("log %s was declared again: partition %d is read from its beginning", log, number)
        self._by_id.pop(subscription.id, None)
        if subscription.client is not None:
            self._start(_unsubscribe(subscription.client, subscription.id))
        self._start(self._begin(subscription.partition, 0))

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
            message, unreadable = decode(raw, log, offset)
            into.append(Delivery(message, log, tag, False, 1, number, offset, unreadable))
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
        if self._client is not None:
            await _unsubscribe(self._client, subscription.id)
        return position

    def _drop_all(self) -> None:
        """Every partition is lost. The streams' connection ends too: it may be as dead as that of the group."""
        client, self._client = self._client, None
        self._revoke(set(self._subscriptions))
        self._subscriptions.clear()
        self._by_id.clear()
        if client is not None:
            self._reconnect_delay.lost(time.monotonic())
            self._start(client.abandon())

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


async def _unsubscribe(client: StreamClient, id: int) -> None:
    if client.is_connection_alive():
        with suppress(*FAILURES):
            await client.unsubscribe(id)
