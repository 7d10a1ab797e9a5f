"""Many queues, each with a receiver of its own, behind one window.

Each queue is received by a task of its own into a small buffer; messages are handed out from the buffers in turn,
so that no queue waits for a busier one, and in the order of each queue. How much of each queue waits here, at
most, is `policy.windows`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from flyball.brokers.port import BrokerError, Delivery, Receiver
from flyball.errors import FlyballError
from flyball.groups.policy.group import Queue
from flyball.groups.policy.windows import share_window
from flyball.groups.readers.meter import QueueMeter
from flyball.groups.receiver import ASK_AGAIN_S, GroupReceiver

log = logging.getLogger("flyball.groups")

_RETRY_S = 0.5
_SHARING_S = 1.0
_RETIRE_S = 1.0  # how often a receiver that ends looks whether its connection was lost
_POLL_S = 0.005  # where no event says that the broker had the time to replace a message


@dataclass(eq=False, slots=True)
class Source:
    """A queue that is read."""

    queue: Queue
    receiver: Receiver
    buffer: deque[Delivery] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    received: int = 0
    """By the end of the last sharing of the window."""

    @property
    def settled(self) -> bool:
        """Nothing that it brought has to be handled any more."""
        return not self.buffer and not self.receiver.in_flight


class MergedReceiver(GroupReceiver):
    """Many queues, each with a receiver of its own."""

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self._sources: dict[Queue, Source] = {}
        self._retired: list[Source] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._turns: deque[Source] = deque()
        self._arrived, self._room = asyncio.Event(), asyncio.Event()
        self._counts_round_trip = False
        self._lately: dict[Queue, int] = {}
        self._sharing = asyncio.create_task(self._keep_sharing())

    @property
    def queues(self) -> list[Queue]:
        return list(self._sources)

    @property
    def occupied(self) -> int:
        return self.in_flight + sum(
            max(0, source.receiver.occupied - source.receiver.in_flight) for source in self._sources.values()
        )

    @property
    def parked(self) -> int:
        return sum(source.receiver.parked + len(source.buffer) for source in self._turns)

    @property
    def round_trip_s(self) -> float:
        known = [trip for source in self._sources.values() if (trip := source.receiver.round_trip_s) > 0]
        return sum(known) / len(known) if known else 0.0

    def count_round_trip(self) -> bool:
        self._counts_round_trip = True
        counted = [source.receiver.count_round_trip() for source in self._sources.values()]
        return any(counted)

    def add(self, queue: Queue, receiver: Receiver) -> Source:
        """Read a queue from now on. A receiver that it had before brings no more, and is closed when all that it
        brought is settled: it is for the broker to see that the new one brings nothing until then.
        """
        before = self._sources.get(queue)
        if before is not None:
            self._retired.append(before)
            task = asyncio.create_task(self._retire(before))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        source = self._sources[queue] = Source(queue, receiver)
        self._turns.append(source)
        self._meters.setdefault(queue, QueueMeter(time.monotonic()))
        source.received = self._meters[queue].received
        if self._counts_round_trip:
            receiver.count_round_trip()
        source.task = asyncio.create_task(self._pump(source))
        self._share()
        return source

    async def _retire(self, source: Source) -> None:
        await self._stop_pump(source)
        self._arrived.set()
        while source in self._retired and not await self.wait_until(
            lambda: source.settled or source not in self._retired, lambda: time.monotonic() + _RETIRE_S
        ):
            pass
        if source in self._retired:
            self._retired.remove(source)
            self._turns.remove(source)
            await _close(source)

    def source(self, queue: Queue) -> Source | None:
        return self._sources.get(queue)

    async def stop_taking(self, source: Source) -> None:
        """Take no more messages from a queue. What was not handed out goes back when the queue is removed, all at
        once and so in order; what may not go back is handed out as the window allows.
        """
        await self._stop_pump(source)
        self._arrived.set()

    async def _stop_pump(self, source: Source) -> None:
        await _end(source.task)
        rest = await source.receiver.withdraw()
        mine = source.buffer if rest else _until_last_kept(source.buffer, source.receiver)
        source.buffer = deque([*mine, *rest])

    def _older(self, queue: Queue) -> list[Source]:
        return [each for each in self._retired if each.queue == queue]

    def is_settled(self, source: Source) -> bool:
        """Whether nothing of its queue is handed out, or has to be."""
        waiting = any(each.buffer for each in (*self._older(source.queue), source))
        return not waiting and not self.in_flight_of(source.queue)

    async def remove(self, source: Source) -> None:
        """Stop reading a queue; what is in flight goes back."""
        if self._sources.get(source.queue) is not source:
            return
        del self._sources[source.queue]
        ended = [*self._older(source.queue), source]
        for each in ended:
            self._turns.remove(each)
            if each is not source:
                self._retired.remove(each)
        self._drop_flights(source.queue)
        self._meters.pop(source.queue, None)
        self._share()
        for each in ended:
            await _close(each)

    async def _pump(self, source: Source) -> None:
        """Receive from one queue. To cancel it loses nothing: receivers hand messages out without waiting."""
        while True:
            while source.buffer or (limit := self._limit()) <= 0:
                self._room.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S if self._counts_round_trip else None):
                        await self._room.wait()
            try:
                source.buffer.extend(await source.receiver.receive(limit))
                self._arrived.set()
            except FlyballError as error:
                # Also a queue that does not exist: while its node restarts, RabbitMQ says so.
                log.warning("queue %s.%d: %s; trying again", *source.queue, error)
                await asyncio.sleep(_RETRY_S)

    def _limit(self) -> int:
        """How many messages a queue may bring now: its part of the free slots."""
        free = self._window - self.occupied
        bringing = sum(1 for source in self._turns if source.buffer or source.receiver.parked)
        return 0 if free <= 0 else max(1, free // max(1, bringing))

    async def receive(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Delivery]:
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            self._arrived.clear()
            allowed = self.may_hand_out()
            deliveries = self._take(min(max_messages, self._window - self.occupied)) if allowed else []
            if deliveries:
                return deliveries
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return []
            poll_s = _POLL_S if self._counts_round_trip and self.parked else None
            again_s = None if allowed else ASK_AGAIN_S
            waits = [wait_s for wait_s in (left_s, poll_s, again_s) if wait_s is not None]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(waits, default=None)):
                    await self._arrived.wait()
        return []

    def _take(self, limit: int) -> list[Delivery]:
        """Up to `limit` messages, from the buffers in turn."""
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            waiting = [source for source in self._turns if source.buffer]
            if not waiting:
                break
            each = max(1, (limit - len(deliveries)) // len(waiting))
            for source in waiting[: limit - len(deliveries)]:
                if source.receiver.in_flight < len(source.buffer):
                    source.buffer.clear()  # the connection was lost: they come again
                    self._room.set()
                part = [source.buffer.popleft() for _ in range(min(each, len(source.buffer)))]
                self._hand_out(source.queue, source.receiver, part)
                deliveries += part
                self._turns.remove(source)
                self._turns.append(source)
        if deliveries:
            self._room.set()
        return deliveries

    def _on_free_slot(self) -> None:
        self._room.set()
        self._arrived.set()

    def _on_window(self) -> None:
        self._share()
        self._on_free_slot()

    async def _keep_sharing(self) -> None:
        while True:
            await asyncio.sleep(_SHARING_S)
            self._lately = {source.queue: self._since_last(source) for source in self._sources.values()}
            self._share()

    def _since_last(self, source: Source) -> int:
        received = self._meters[source.queue].received
        count, source.received = received - source.received, received
        return count

    def _share(self) -> None:
        """Set how much of each queue may wait here, by what came lately."""
        lately = {queue: self._lately.get(queue, 0) for queue in self._sources}
        for queue, window in share_window(self._window, lately).items():
            receiver = self._sources[queue].receiver
            if receiver.window != window:
                receiver.set_window(window)

    async def withdraw(self) -> list[Delivery]:
        sources = list(self._sources.values())
        await asyncio.gather(*(self.stop_taking(source) for source in sources))
        rest: list[Delivery] = []
        for source in list(self._turns):
            part = list(source.buffer)
            source.buffer.clear()
            self._hand_out(source.queue, source.receiver, part)
            rest += part
        return rest

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await _end(self._sharing)
        await asyncio.gather(*(self.remove(source) for source in list(self._sources.values())))
        await asyncio.gather(*self._closing)
        self._arrived.set()


async def _close(source: Source) -> None:
    await _end(source.task)
    source.buffer.clear()
    with suppress(BrokerError):  # what it had goes back when the broker notices
        await source.receiver.close()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _until_last_kept(deliveries: Iterable[Delivery], receiver: Receiver) -> list[Delivery]:
    """What has to be handled so that all that follows may go back, in order."""
    ordered = list(deliveries)
    last = max((at for at, each in enumerate(ordered, 1) if not receiver.may_return(each)), default=0)
    return ordered[:last]
