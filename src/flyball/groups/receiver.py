"""What receivers of several queues have in common: what is in flight of each queue, and since when."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from flyball.brokers.port import Delivery, Receiver
from flyball.errors import InvalidValue
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import QueueLoad
from flyball.groups.readers.meter import QueueMeter, SharedTime

ASK_AGAIN_S = 0.05
"""How often a receiver that may hand nothing out asks again."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A message that was handed out."""

    delivery: Delivery
    queue: Queue
    receiver: Receiver
    since_s: float
    share_s: float
    """As `SharedTime` had it then."""


class GroupReceiver(ABC):
    """`port.Receiver` for all queues that a member reads. A subclass fetches messages from the broker.

    The window counts what is handed out, whichever queue it is from.
    """

    def __init__(self, window: int) -> None:
        self._window = _check_window(window)
        self._flights: dict[int, _Flight] = {}
        self._meters: dict[Queue, QueueMeter] = {}
        self._shared = SharedTime(time.monotonic())
        self._settled = asyncio.Event()
        self._closed = False
        self.may_hand_out: Callable[[], bool] = lambda: True
        """Asked before messages are handed out: False once the member's session is over by its own clock."""

    @property
    def window(self) -> int:
        return self._window

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    @abstractmethod
    def occupied(self) -> int: ...

    @property
    @abstractmethod
    def parked(self) -> int: ...

    @property
    @abstractmethod
    def round_trip_s(self) -> float: ...

    @abstractmethod
    def count_round_trip(self) -> bool: ...

    def set_window(self, window: int) -> None:
        self._window = _check_window(window)
        self._on_window()

    @abstractmethod
    def _on_window(self) -> None:
        """Use the window as it is now."""

    @abstractmethod
    async def receive(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Delivery]: ...

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while not self._closed:
            for delivery in await self.receive():
                yield delivery

    def _hand_out(self, queue: Queue, receiver: Receiver, deliveries: Sequence[Delivery]) -> None:
        now_s = time.monotonic()
        meter = self._meters.setdefault(queue, QueueMeter(now_s))
        meter.begin(len(deliveries), now_s)
        share_s = self._shared.add(len(deliveries), now_s)
        for delivery in deliveries:
            self._flights[id(delivery)] = _Flight(delivery, queue, receiver, now_s, share_s)

    async def ack(self, *deliveries: Delivery) -> None:
        for receiver, flights in self._by_receiver(deliveries):
            await receiver.ack(*(flight.delivery for flight in flights))
            self._land(flights)

    async def nack(self, *deliveries: Delivery, requeue: bool = True) -> None:
        for receiver, flights in self._by_receiver(deliveries):
            await receiver.nack(*(flight.delivery for flight in flights), requeue=requeue)
            self._land(flights)

    def _by_receiver(self, deliveries: Iterable[Delivery]) -> list[tuple[Receiver, list[_Flight]]]:
        """What is in flight of these; what went back meanwhile is delivered again, perhaps to another member."""
        found: dict[int, tuple[Receiver, list[_Flight]]] = {}
        for delivery in deliveries:
            flight = self._flights.get(id(delivery))
            if flight is not None:
                found.setdefault(id(flight.receiver), (flight.receiver, []))[1].append(flight)
        return list(found.values())

    def _land(self, flights: Iterable[_Flight]) -> None:
        now_s = time.monotonic()
        for flight in flights:
            if self._flights.pop(id(flight.delivery), None) is not None:
                work_s = self._shared.add(-1, now_s) - flight.share_s
                self._meters[flight.queue].end(flight.since_s, work_s, now_s)
        self._settled.set()
        self._on_free_slot()

    @abstractmethod
    def _on_free_slot(self) -> None:
        """A message was settled, or went back."""

    def _drop_flights(self, queue: Queue) -> None:
        """Forget what is in flight from a queue: it goes back."""
        now_s = time.monotonic()
        for key, flight in list(self._flights.items()):
            if flight.queue == queue:
                del self._flights[key]
                self._shared.add(-1, now_s)
                self._meters[queue].drop(now_s)
        self._on_free_slot()

    def may_return(self, delivery: Delivery) -> bool:
        flight = self._flights.get(id(delivery))
        return flight is None or flight.receiver.may_return(delivery)

    def in_flight_of(self, queue: Queue) -> int:
        meter = self._meters.get(queue)
        return 0 if meter is None else meter.in_flight

    def loads(self, queues: Iterable[Queue]) -> Mapping[Queue, QueueLoad]:
        now_s = time.monotonic()
        return {
            queue: self._meters[queue].load(now_s) if queue in self._meters else QueueLoad() for queue in queues
        }

    async def wait_until(self, condition: Callable[[], bool], deadline_s: Callable[[], float]) -> bool:
        """Wait for a condition on what is in flight; `deadline_s` is asked each time, on the monotonic clock."""
        while not condition():
            left_s = deadline_s() - time.monotonic()
            if left_s <= 0:
                return False
            self._settled.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._settled.wait()
        return True

    def wake_waiters(self) -> None:
        """Let `wait_until` look again: a deadline has changed."""
        self._settled.set()

    @abstractmethod
    async def withdraw(self) -> list[Delivery]: ...

    @abstractmethod
    async def close(self) -> None: ...


def _check_window(window: int) -> int:
    if window < 0:
        raise InvalidValue(f"window must be an integer >= 0, got {window}")
    return window
