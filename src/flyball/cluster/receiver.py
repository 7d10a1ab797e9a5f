"""A consumer of the cluster: the ordinary receiver of the elected node, replaced when the session moves.

When a session leaves a healthy node, what was delivered there is settled there: it does not come again unless that
takes longer than `_LEAVE_S`. When its node is lost, what was in flight comes again, with the same id, as soon as
the node is back: it is not known there whether it was handled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from flyball.brokers import Broker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import BrokerError, Delivery, Receiver, may_pass
from flyball.cluster.client import ClusterClient
from flyball.cluster.lines import BackgroundTasks, Line, open_line
from flyball.cluster.session import Session
from flyball.errors import InvalidValue

_SLICE_S = 0.2
"""How long one call waits at a node before it looks whether the session moved."""
_IDLE_S = 1.0
_RETRY_S = 0.1
_LEAVE_S = 10.0
_CLOSE_S = 5.0


class ClusterReceiver:
    """See `port.Receiver`."""

    def __init__(self, client: ClusterClient, channel: ChannelSpec, window: int) -> None:
        self._client, self._channel, self._window = client, channel, window
        self._line: Line[Receiver] | None = None
        self._old: list[Line[Receiver]] = []
        self._rest: list[tuple[Line[Receiver], Delivery]] = []
        """Deliveries of a node that was left which may not go back: they are handed out next."""
        self._flights: dict[int, tuple[Line[Receiver], Delivery]] = {}
        self._last_tag = 0
        self._counts_round_trip = False
        self._receiving = asyncio.Lock()
        self._settled = asyncio.Event()
        self._received_s = time.monotonic()
        self._session: Session
        self._background = BackgroundTasks()
        self._closed = False

    async def open(self) -> None:
        def register(session: Session) -> ClusterReceiver:
            self._session = session
            return self

        await self._client.join("consumer", register)

    async def move(self, node: str, *, old_is_lost: bool) -> None:
        async def open_end(broker: Broker) -> Receiver:
            return await broker.receiver(self._channel.name, window=max(1, self._window))

        new = await open_line(self._client, node, self._channel, open_end)
        if self._counts_round_trip:
            new.end.count_round_trip()
        old = self._line
        if old is None:
            self._line = new
        elif old_is_lost:
            self._line = new
            self._forget(old)
            old.abandon()
            self._background.start(old.finish())
        else:
            async with self._receiving:  # a call would begin to consume again
                self._line = new
                self._old.append(old)
                with suppress(BrokerError):
                    self._rest += [(old, delivery) for delivery in await old.end.withdraw()]
            self._background.start(self._leave(old))

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def node(self) -> str | None:
        """The node that it receives from."""
        return None if self._line is None else self._line.node

    # --- window -------------------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        return self._window

    def set_window(self, window: int) -> None:
        if window < 0:
            raise InvalidValue(f"window must be an integer >= 0, got {window}")
        self._window = window
        self._set_end_window()

    def _set_end_window(self) -> None:
        """What is still in flight from nodes that were left takes slots of the window."""
        if self._line is not None:
            free = max(0, self._window - self._count_old())
            if self._line.end.window != free:
                self._line.end.set_window(free)

    def _count_old(self) -> int:
        return sum(line is not self._line for line, _ in self._flights.values()) if self._old else 0

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def occupied(self) -> int:
        return self._count_old() + (0 if self._line is None else self._line.end.occupied)

    @property
    def parked(self) -> int:
        return len(self._rest) + (0 if self._line is None else self._line.end.parked)

    @property
    def round_trip_s(self) -> float:
        return 0.0 if self._line is None else self._line.end.round_trip_s

    def count_round_trip(self) -> bool:
        self._counts_round_trip = True
        return self._line is not None and self._line.end.count_round_trip()

    # --- messages -----------------------------------------------------------------------------------------------

    async def receive(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Delivery]:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            left_s = _SLICE_S if deadline_s is None else deadline_s - time.monotonic()
            deliveries = await self._receive_once(max_messages, max(0.0, min(_SLICE_S, left_s)))
            now_s = time.monotonic()
            self._session.meter.add_delivered(len(deliveries))
            if deliveries or self._window <= self.in_flight:
                self._received_s = now_s
            self._session.is_idle = now_s - self._received_s >= _IDLE_S
            if deliveries or (deadline_s is not None and now_s >= deadline_s):
                return deliveries
        return []

    async def _receive_once(self, max_messages: int, timeout_s: float) -> list[Delivery]:
        free = self._window - len(self._flights)
        if self._rest and free > 0:
            count = min(free, max_messages)
            first, self._rest = self._rest[:count], self._rest[count:]
            return [self._hand_out(line, delivery) for line, delivery in first]
        async with self._receiving:
            line = self._line
            if line is None:
                return []
            self._set_end_window()
            try:
                deliveries = await line.end.receive(max_messages, timeout_s)
            except BrokerError as error:
                if not may_pass(error):
                    raise
                self._session.is_troubled = True
                await asyncio.sleep(min(_RETRY_S, timeout_s))
                return []
            if line.is_abandoned:
                return []
            if deliveries:
                self._session.is_troubled = False
            return [self._hand_out(line, delivery) for delivery in deliveries]

    def _hand_out(self, line: Line[Receiver], delivery: Delivery) -> Delivery:
        self._last_tag += 1
        if not self._flights:
            self._session.meter.set_busy(True)
        self._flights[self._last_tag] = (line, delivery)
        return replace(delivery, tag=self._last_tag)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while not self._closed:
            for delivery in await self.receive():
                yield delivery

    async def ack(self, *deliveries: Delivery) -> None:
        for line, inner in self._take(deliveries):
            await line.end.ack(*inner)

    async def nack(self, *deliveries: Delivery, requeue: bool = True) -> None:
        for line, inner in self._take(deliveries):
            await line.end.nack(*inner, requeue=requeue)

    def _take(self, deliveries: Iterable[Delivery]) -> list[tuple[Line[Receiver], Sequence[Delivery]]]:
        """What is in flight of these, by line; what went with a lost node comes again."""
        found: dict[int, tuple[Line[Receiver], list[Delivery]]] = {}
        for delivery in deliveries:
            line, inner = self._flights.pop(delivery.tag, (None, delivery))
            if line is not None:
                found.setdefault(id(line), (line, []))[1].append(inner)
        self._note_settled()
        self._settled.set()
        return list(found.values())

    def may_return(self, delivery: Delivery) -> bool:
        line, inner = self._flights.get(delivery.tag, (None, delivery))
        return line is None or line.end.may_return(inner)

    async def _leave(self, line: Line[Receiver]) -> None:
        """Close the line when all that it delivered is settled, or too late: then the rest goes back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                while self._has_messages(line):
                    self._settled.clear()
                    await self._settled.wait()
        self._forget(line)
        self._old.remove(line)
        await line.finish()

    def _has_messages(self, line: Line[Receiver]) -> bool:
        waiting = any(owner is line for owner, _ in self._rest)
        return waiting or any(owner is line for owner, _ in self._flights.values())

    def _forget(self, line: Line[Receiver]) -> None:
        self._rest = [each for each in self._rest if each[0] is not line]
        self._flights = {tag: each for tag, each in self._flights.items() if each[0] is not line}
        self._note_settled()

    def _note_settled(self) -> None:
        if not self._flights:
            self._session.meter.set_busy(False)

    async def withdraw(self) -> list[Delivery]:
        await self._session.stop()
        rest, self._rest = self._rest, []
        line = self._line
        if line is not None:
            async with self._receiving:
                rest += [(line, delivery) for delivery in await line.end.withdraw()]
        return [self._hand_out(owner, delivery) for owner, delivery in rest]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._client.leave(self._session)
        line, self._line = self._line, None
        self._flights.clear()
        self._rest.clear()
        self._settled.set()
        if line is not None:
            self._background.start(line.finish())
        await self._background.wait(_CLOSE_S)
