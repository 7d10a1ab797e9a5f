"""What every receiver has in common: the window, what is in flight, and waiting for the next message."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from flyball.brokers.core.replacement import Replacement
from flyball.brokers.port import Delivery
from flyball.errors import InvalidValue


class BaseReceiver(ABC):
    """Implements `port.Receiver` on top of four methods of an adapter.

    `_fetch(n)` returns up to n deliveries, none if there are none right now; `_acknowledge` and `_return` report
    settled deliveries to the broker; `_release` returns what is left when the receiver closes. An adapter calls
    `_notify()` when there may be something to fetch; one that cannot know (another process put it there) sets
    `_poll_s`.
    """

    _poll_s: float | None = None
    _reply_frees_slot = False
    """Whether a settled message's slot is free only when the broker has answered."""

    def __init__(self, window: int) -> None:
        self._window = _check_window(window)
        self._in_flight: dict[int, Delivery] = {}
        self._wake = asyncio.Event()
        self._closed = False
        self._replacement: Replacement | None = None  # where it is measured

    @abstractmethod
    async def _fetch(self, limit: int) -> Sequence[Delivery]: ...

    @abstractmethod
    async def _acknowledge(self, deliveries: Sequence[Delivery]) -> None: ...

    @abstractmethod
    async def _return(self, deliveries: Sequence[Delivery], requeue: bool) -> None: ...

    @abstractmethod
    async def _release(self, unsettled: Sequence[Delivery]) -> None: ...

    def _notify(self) -> None:
        self._wake.set()

    def _drop_in_flight(self) -> None:
        """Forget what is in flight: the broker will deliver it again (connection lost, partitions revoked)."""
        self._in_flight.clear()
        if self._replacement is not None:
            self._replacement.limit(0)
        self._wake.set()

    @property
    def window(self) -> int:
        return self._window

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def occupied(self) -> int:
        """Slots of the window in use."""
        return len(self._in_flight)

    @property
    def parked(self) -> int:
        """Messages that the broker sent beyond the window; they wait here, untouched."""
        return 0

    @property
    def round_trip_s(self) -> float:
        return 0.0 if self._replacement is None else self._replacement.mean_s

    def count_round_trip(self) -> bool:
        if self._replacement is None:
            self._replacement = Replacement()
        return False

    @property
    def closed(self) -> bool:
        return self._closed

    def set_window(self, window: int) -> None:
        self._window = _check_window(window)
        if self._replacement is not None:
            self._replacement.limit(self._window - self.occupied)
        self._wake.set()

    async def receive(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Delivery]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            self._wake.clear()
            free_slots = min(max_messages, self._window - self.occupied)
            if free_slots > 0:
                deliveries = await self._fetch(free_slots)
                if self._replacement is not None:
                    self._replacement.fill(len(deliveries), requested=free_slots, now_s=time.monotonic())
                if deliveries:
                    self._in_flight.update(zip([each.tag for each in deliveries], deliveries, strict=True))
                    return list(deliveries)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return []
            waits = [wait for wait in (left, self._poll_s) if wait is not None]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(waits, default=None)):
                    await self._wake.wait()
        return []

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while not self._closed:
            for delivery in await self.receive():
                yield delivery

    async def ack(self, *deliveries: Delivery) -> None:
        mine = self._remove_settled(deliveries)
        if mine:
            await self._acknowledge(mine)

    async def nack(self, *deliveries: Delivery, requeue: bool = True) -> None:
        mine = self._remove_settled(deliveries)
        if mine:
            await self._return(mine, requeue)

    def _remove_settled(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Remove deliveries from those in flight; returns the ones that were.

        One that is not was settled before, or went back to the broker when a connection was lost and will be
        delivered again: there is nothing to report to the broker.
        """
        remove = self._in_flight.pop
        mine = [delivery for delivery in deliveries if remove(delivery.tag, None) is not None]
        if self._replacement is not None:
            self._replacement.add_empty(len(mine), time.monotonic())
            self._replacement.limit(self._window - self.occupied)
        if not self._reply_frees_slot:
            self._wake.set()
        return mine

    def may_return(self, delivery: Delivery) -> bool:  # noqa: ARG002  where deliveries are not counted
        return True

    async def withdraw(self) -> list[Delivery]:
        return []

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        unsettled = list(self._in_flight.values())
        self._in_flight.clear()
        await self._release(unsettled)


def _check_window(window: int) -> int:
    if window < 0:
        raise InvalidValue(f"window must be an integer >= 0, got {window}")
    return window
