"""The messages of a memory broker, and the queues and groups that they wait for.

Everything that is delivered comes from an `Outlet`: each queue has one of its own, each group one per pattern.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from flyball.brokers.core.names import check_name, matches
from flyball.brokers.port import Kind, Message, no_such_channel


@dataclass(slots=True)
class StoredMessage:
    """A stored message. `pending_outlets` counts the outlets that have not settled it yet."""

    message: Message
    channel: Channel
    stored_time_s: float
    partition: int | None = None
    offset: int | None = None
    pending_outlets: int = 0
    dropped: bool = False


@dataclass(slots=True)
class Outlet:
    """Messages that wait for the members of one queue or group, oldest first."""

    pattern: str
    waiting: list[tuple[int, StoredMessage, int]] = field(
        default_factory=list
    )  # heap of (arrival, message, attempts)
    unsettled: Counter[str] = field(default_factory=Counter)  # by channel
    wake: list[Callable[[], None]] = field(default_factory=list)

    def put(self, arrival: int, stored: StoredMessage, attempts: int) -> None:
        # What returns keeps its arrival number and so its position in the order.
        heapq.heappush(self.waiting, (arrival, stored, attempts))
        for wake in self.wake:
            wake()

    def remove_channel(self, channel: Channel) -> None:
        """Drop what waits from a channel that was deleted."""
        self.waiting = [item for item in self.waiting if item[1].channel is not channel]
        heapq.heapify(self.waiting)
        del self.unsettled[channel.name]


@dataclass(slots=True)
class Channel:
    name: str
    kind: Kind
    partitions: int
    max_bytes: int | None
    retention_s: float | None
    stored_bytes: int = 0
    records: list[deque[StoredMessage]] = field(default_factory=list)
    next_offset: list[int] = field(default_factory=list)
    sequences: dict[str, int] = field(default_factory=dict)
    waiting_senders: set[asyncio.Event] = field(default_factory=set)

    @property
    def full(self) -> bool:
        return self.kind == "queue" and self.max_bytes is not None and self.stored_bytes >= self.max_bytes


class Hub:
    """The messages of one name; brokers opened on that name are views of it."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.queues: dict[str, Outlet] = {}
        self.groups: dict[tuple[str, str], Outlet] = {}
        self.arrivals = itertools.count()
        self.keyless = itertools.count()

    def channel(self, name: str) -> Channel:
        channel = self.channels.get(check_name(name))
        if channel is None:
            raise no_such_channel("queue or log", name, "in this memory broker")
        return channel

    def exists(self, channel: Channel) -> bool:
        """Whether this very channel exists, and not one that was declared later under its name."""
        return self.channels.get(channel.name) is channel

    def outlets(self, channel: str) -> list[Outlet]:
        own = [self.queues[channel]] if channel in self.queues else []
        return own + [outlet for outlet in self.groups.values() if matches(outlet.pattern, channel)]

    def store(self, channel: Channel, message: Message, partition: int | None) -> StoredMessage:
        stored = StoredMessage(message, channel, time.time(), partition)
        if partition is not None:
            stored.offset = channel.next_offset[partition]
            channel.next_offset[partition] += 1
            channel.records[partition].append(stored)
        channel.stored_bytes += len(message.body)
        outlets = self.outlets(channel.name)
        stored.pending_outlets = len(outlets)
        arrival = next(self.arrivals)
        for outlet in outlets:
            outlet.unsettled[channel.name] += 1
            outlet.put(arrival, stored, 0)
        return stored

    def settle(self, stored: StoredMessage, outlet: Outlet) -> None:
        if not self.exists(stored.channel):
            return
        outlet.unsettled[stored.channel.name] -= 1
        stored.pending_outlets -= 1
        if stored.pending_outlets == 0 and stored.channel.kind == "queue":
            stored.channel.stored_bytes -= len(stored.message.body)
            for waiter in stored.channel.waiting_senders:
                waiter.set()

    def trim(self, channel: Channel) -> None:
        """Drop the records of a log that are beyond its retention."""
        oldest_s = -float("inf") if channel.retention_s is None else time.time() - channel.retention_s
        limit = float("inf") if channel.max_bytes is None else channel.max_bytes
        for records in channel.records:
            while records and (channel.stored_bytes > limit or records[0].stored_time_s < oldest_s):
                record = records.popleft()
                record.dropped = True
                channel.stored_bytes -= len(record.message.body)
