"""`memory://`: a broker inside this process, for tests and trials.

`memory://name` is one broker for all that open that name in this process; plain `memory://` is a new one each
time. It keeps the whole contract of `port` except surviving the process.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

from flyball.brokers.core.broker import BaseBroker
from flyball.brokers.core.checks import ChannelSpec, check_batch, partition_of, queue_full, too_large
from flyball.brokers.core.names import check_name, matches
from flyball.brokers.core.receiver import BaseReceiver
from flyball.brokers.memory.hub import Channel, Hub, Outlet, StoredMessage
from flyball.brokers.port import (
    Broker,
    Capabilities,
    ChannelInfo,
    Delivery,
    Message,
    NoSuchChannel,
    Receiver,
    Record,
    Sender,
    SendResult,
    Start,
    Unsupported,
    no_such_channel,
)
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue
from flyball.futures import wait_at_most

_CHUNK = 1000  # records a `read` hands out at once


_hubs: dict[str, Hub] = {}


async def connect(url: BrokerUrl) -> Broker:
    url.check_options("blocked_timeout_s", "max_body_bytes")
    name = url.hosts[0][0] if url.hosts else url.path.strip("/")
    hub = _hubs.setdefault(name, Hub()) if name else Hub()
    return MemoryBroker(hub, url.number("blocked_timeout_s", 30.0), url.integer("max_body_bytes", 16 << 20))


class MemoryBroker(BaseBroker["_MemoryReceiver"]):
    def __init__(self, hub: Hub, blocked_timeout_s: float, max_body_bytes: int) -> None:
        super().__init__()
        self._hub = hub
        self._blocked_timeout_s = blocked_timeout_s
        self.capabilities = Capabilities(
            queues=True,
            logs=True,
            durable=False,
            dedup=True,
            shared_between_processes=False,
            max_body_bytes=max_body_bytes,
        )

    async def sender(self, channel: str, *, producer: str | None = None) -> Sender:
        limit = self.capabilities.max_body_bytes or 0
        name = self._hub.channel(channel).name
        return _MemorySender(self._hub, name, producer, self._blocked_timeout_s, limit)

    async def receiver(self, queue: str, *, window: int = 100) -> Receiver:
        if self._hub.channel(queue).kind != "queue":
            raise Unsupported(f"{queue!r} is a log: read it, or subscribe a group to it")
        return self._register_receiver(_MemoryReceiver(self._hub, self._hub.queues[queue], window, queue))

    async def subscribe(self, pattern: str, group: str, *, window: int = 100, start: Start = "latest") -> Receiver:
        matches(pattern, check_name(group))  # check both before anything is created
        outlet = self._hub.groups.get((pattern, group))
        if outlet is None:
            outlet = self._hub.groups[pattern, group] = Outlet(pattern)
            if start == "earliest":
                self._fill(outlet)
        return self._register_receiver(_MemoryReceiver(self._hub, outlet, window))

    def _fill(self, outlet: Outlet) -> None:
        for channel in self._hub.channels.values():
            if matches(outlet.pattern, channel.name):
                for stored in itertools.chain(*channel.records):
                    outlet.unsettled[channel.name] += 1
                    outlet.put(next(self._hub.arrivals), stored, 0)

    async def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:
        wanted = [stored for stored in self._records(log, partition) if start <= (stored.offset or 0) < stop]
        for at in range(0, len(wanted), _CHUNK):
            yield [
                Record(partition, stored.offset or 0, stored.message, stored.stored_time_s)
                for stored in wanted[at : at + _CHUNK]
            ]

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:
        records = self._records(log, partition)
        end = self._hub.channel(log).next_offset[partition]
        return (records[0].offset or 0 if records else end), end

    def _records(self, log: str, partition: int) -> deque[StoredMessage]:
        channel = self._hub.channel(log)
        if channel.kind != "log":
            raise Unsupported(f"{log!r} is a queue: only a log can be read by offset")
        if not 0 <= partition < channel.partitions:
            raise InvalidValue(f"{log!r} has partitions 0 to {channel.partitions - 1}, not {partition}")
        self._hub.trim(channel)
        return channel.records[partition]

    async def _declare(self, spec: ChannelSpec) -> None:
        existing = self._hub.channels.get(spec.name)
        if existing is not None:
            spec.check_fits(existing.kind, existing.partitions)
            return
        new_channel = Channel(spec.name, spec.kind, spec.partitions, spec.max_bytes, spec.retention_s)
        self._hub.channels[spec.name] = new_channel
        if spec.kind == "queue":
            self._hub.queues[spec.name] = Outlet(spec.name)
        else:
            new_channel.records = [deque() for _ in range(spec.partitions)]
            new_channel.next_offset = [0] * spec.partitions

    async def delete(self, channel: str) -> None:
        removed = self._hub.channels.pop(check_name(channel), None)
        if removed is None:
            return
        for outlet in self._hub.outlets(channel):
            outlet.remove_channel(removed)
        queue = self._hub.queues.pop(channel, None)
        for wake in () if queue is None else queue.wake:
            wake()  # its receivers notice
        # Groups with members stay: they get what a channel made anew is sent.
        unused = [key for key, outlet in self._hub.groups.items() if outlet.pattern == channel and not outlet.wake]
        for key in unused:
            del self._hub.groups[key]
        for waiter in removed.waiting_senders:
            waiter.set()

    async def purge(self, channel: str) -> int | None:
        stored_channel = self._hub.channel(channel)
        if stored_channel.kind == "log":
            count = sum(len(records) for records in stored_channel.records)
            for records in stored_channel.records:
                for stored in records:
                    stored.dropped = True
                records.clear()
            stored_channel.stored_bytes = 0
            return count
        outlet = self._hub.queues[channel]
        waiting, outlet.waiting = outlet.waiting, []
        for _, stored, _ in waiting:
            self._hub.settle(stored, outlet)
        return len(waiting)

    async def depth(self, channel: str, group: str | None = None) -> int:
        stored_channel = self._hub.channel(channel)
        if group is not None:
            mine = [
                outlet
                for (pattern, name), outlet in self._hub.groups.items()
                if name == group and matches(pattern, channel)
            ]
            return sum(outlet.unsettled[channel] for outlet in mine)
        if stored_channel.kind == "queue":
            return len(self._hub.queues[channel].waiting)
        self._hub.trim(stored_channel)
        return sum(len(records) for records in stored_channel.records)

    async def oldest_age_s(self, channel: str) -> float | None:
        stored_channel = self._hub.channel(channel)
        if stored_channel.kind == "queue":
            waiting = self._hub.queues[channel].waiting
            oldest = [waiting[0][1]] if waiting else []
        else:
            oldest = [records[0] for records in stored_channel.records if records]
        return max((time.time() - stored.stored_time_s for stored in oldest), default=None)

    async def channels(self) -> list[ChannelInfo]:
        return [
            ChannelInfo(
                name,
                stored_channel.kind,
                stored_channel.partitions,
                await self.depth(name),
                await self.oldest_age_s(name),
            )
            for name, stored_channel in sorted(self._hub.channels.items())
        ]

    async def close(self) -> None:
        await self._close_receivers()


class _MemorySender:
    def __init__(
        self, hub: Hub, name: str, producer: str | None, blocked_timeout_s: float, max_body_bytes: int
    ) -> None:
        # By name: the channel may be deleted, and declared again, while this sender is open.
        self._hub, self._name, self._producer = hub, name, producer
        self._blocked_timeout_s, self._max_body_bytes = blocked_timeout_s, max_body_bytes

    @property
    def blocked(self) -> bool:
        channel = self._hub.channels.get(self._name)
        return channel is not None and channel.full

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        channel = self._hub.channel(self._name)
        messages, unfit = check_batch(messages)
        last_sequence = self._last_sequence(channel, sequence)
        keyless = next(self._hub.keyless) % channel.partitions
        deadline = time.monotonic() + self._blocked_timeout_s
        results = []
        for index, message in enumerate(messages):
            if index in unfit:
                results.append(SendResult(message.id, unfit[index]))
            elif last_sequence is not None and sequence is not None and sequence + index <= last_sequence:
                results.append(SendResult(message.id, duplicate=True))
            elif len(message.body) > self._max_body_bytes:
                results.append(SendResult(message.id, too_large(message, self._max_body_bytes)))
            elif not await self._wait_for_space(channel, deadline):
                results.append(SendResult(message.id, queue_full(self._name, self._blocked_timeout_s)))
            else:
                partition = partition_of(message.key, channel.partitions, keyless)
                stored = self._hub.store(channel, message, partition if channel.kind == "log" else None)
                if sequence is not None and self._producer is not None:
                    channel.sequences[self._producer] = sequence + index
                results.append(SendResult(message.id, partition=stored.partition, offset=stored.offset))
        self._hub.trim(channel)
        return results

    def _last_sequence(self, channel: Channel, sequence: int | None) -> int | None:
        if sequence is None or channel.kind == "queue":
            return None
        if self._producer is None:
            raise InvalidValue(f"sequence {sequence} needs a producer: open the sender with producer=NAME")
        return channel.sequences.get(self._producer)

    async def _wait_for_space(self, channel: Channel, deadline: float) -> bool:
        while channel.full:
            space = asyncio.Event()
            channel.waiting_senders.add(space)
            try:
                await wait_at_most(space.wait(), max(deadline - time.monotonic(), 0.0))
            except TimeoutError:
                return False
            finally:
                channel.waiting_senders.discard(space)
            if self._hub.channels.get(self._name) is not channel:
                raise NoSuchChannel(
                    f"{self._name!r} was deleted while a message waited for space in it: send again"
                )
        return True

    async def last_sequence(self) -> int | None:
        return None if self._producer is None else self._hub.channel(self._name).sequences.get(self._producer)

    async def close(self) -> None:
        return None


class _MemoryReceiver(BaseReceiver):
    def __init__(self, hub: Hub, outlet: Outlet, window: int, queue: str | None = None) -> None:
        super().__init__(window)
        self._hub, self._outlet, self._queue = hub, outlet, queue
        self._tags = itertools.count(1)
        self._claimed: dict[int, tuple[int, StoredMessage, int]] = {}
        outlet.wake.append(self._notify)

    def _find_queue(self, name: str) -> None:
        """Receive from the queue that has the name now: ours was deleted, with what was in flight."""
        outlet = self._hub.queues.get(name)
        if outlet is None:
            raise no_such_channel("queue", name, "in this memory broker")
        self._outlet.wake.remove(self._notify)
        self._outlet = outlet
        outlet.wake.append(self._notify)
        self._claimed.clear()
        self._drop_in_flight()

    async def _fetch(self, limit: int) -> Sequence[Delivery]:
        if self._queue is not None and self._hub.queues.get(self._queue) is not self._outlet:
            self._find_queue(self._queue)
        deliveries: list[Delivery] = []
        while self._outlet.waiting and len(deliveries) < limit:
            arrival, stored, attempts = heapq.heappop(self._outlet.waiting)
            if stored.dropped:
                self._hub.settle(stored, self._outlet)
                continue
            tag = next(self._tags)
            self._claimed[tag] = (arrival, stored, attempts + 1)
            deliveries.append(
                Delivery(
                    message=stored.message,
                    channel=stored.channel.name,
                    tag=tag,
                    redelivered=attempts > 0,
                    attempt=attempts + 1,
                    partition=stored.partition,
                    offset=stored.offset,
                )
            )
        return deliveries

    async def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            _, stored, _ = self._claimed.pop(delivery.tag)
            self._hub.settle(stored, self._outlet)

    async def _return(self, deliveries: Sequence[Delivery], requeue: bool) -> None:
        if not requeue:
            await self._acknowledge(deliveries)
            return
        for delivery in deliveries:
            arrival, stored, attempts = self._claimed.pop(delivery.tag)
            if self._hub.exists(stored.channel):
                self._outlet.put(arrival, stored, attempts)

    async def _release(self, unsettled: Sequence[Delivery]) -> None:
        self._outlet.wake.remove(self._notify)
        await self._return(unsettled, requeue=True)
