"""The far side of a publisher in the twin: a network, a broker with a finite queue, a subscriber with vacations.

The broker takes in one message after the other, puts each into a finite queue and answers with an ACK that
carries the number of free slots; the publisher's side of the connection (`Link`) never has more unanswered
messages than the last such number allows. That is flow control as TCP does it, in messages instead of
bytes. When a full queue has free slots again, the broker sends an update, as TCP's window update does.

The subscriber is a gated vacation server: it goes away for an exponential time, then reads exactly the messages
that were there when it came back, each in an exponential time, and goes away again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class FarSide:
    """What lies beyond the publisher; see the defaults' reasons in `flyball.twin.publisher`."""

    round_trip_s: float = 0.140
    intake_s: float = 0.0005
    """Time in which the broker takes in one message, one after the other: its capacity is 1/intake_s."""
    queue: int = 100_000
    """Messages that the broker holds at most."""
    read_rate: float = 1000.0
    """Messages a second that the subscriber reads while it works (mean of an exponential time)."""
    vacation_s: float = 0.1
    """Mean time between two visits of the subscriber (exponential)."""

    def __post_init__(self) -> None:
        for name in ("round_trip_s", "intake_s", "vacation_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise InvalidValue(f"{name} must be a number of seconds >= 0, got {value!r}")
        if not (math.isfinite(self.read_rate) and self.read_rate > 0.0):
            raise InvalidValue(f"read_rate must be a number of messages a second > 0, got {self.read_rate!r}")
        if self.queue < 1:
            raise InvalidValue(f"queue must be a number of messages >= 1, got {self.queue!r}")


class Broker:
    """The broker and its subscriber. A message is known by the time at which it came to its publisher."""

    def __init__(self, environment: Any, far: FarSide, rng: np.random.Generator) -> None:
        self.far = far
        self.environment = environment
        self.read_after_s: list[float] = []
        """For each message that the subscriber has read: its age then."""
        self._rng = rng
        self._arrivals: deque[tuple[float, Any]] = deque()
        self._queue: deque[float] = deque()
        self._links: list[Link] = []
        self._arrived, self._slot_free = environment.event(), environment.event()
        environment.process(self._take_in())
        environment.process(self._subscribe())

    @property
    def free_slots(self) -> int:
        return self.far.queue - len(self._queue)

    def link(self) -> Link:
        link = Link(self)
        self._links.append(link)
        return link

    def offer(self, message: float) -> Any:
        """A message has arrived at the broker; the event is its ACK, whose value is the number of free slots."""
        ack = self.environment.event()
        self._arrivals.append((message, ack))
        _fire(self._arrived)
        return ack

    def _take_in(self) -> Iterator[Any]:
        env = self.environment
        while True:
            while not self._arrivals:
                self._arrived = env.event()
                yield self._arrived
            if self.far.intake_s:
                yield env.timeout(self.far.intake_s)
            while self.free_slots == 0:
                self._slot_free = env.event()
                yield self._slot_free
            message, ack = self._arrivals.popleft()
            self._queue.append(message)
            ack.succeed(self.free_slots)

    def _subscribe(self) -> Iterator[Any]:
        env, far = self.environment, self.far
        while True:
            yield env.timeout(self._rng.exponential(far.vacation_s))
            for _ in range(len(self._queue)):  # the gate: what comes from now on waits for the next visit
                yield env.timeout(self._rng.exponential(1.0 / far.read_rate))
                self.read_after_s.append(env.now - self._queue.popleft())
                if self.free_slots == 1:
                    _fire(self._slot_free)
                    for link in self._links:
                        link.send_update(self.free_slots)


class Link:
    """A publisher's connection: knows the number of free slots that the broker sent last."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._free_slots = broker.free_slots
        self._unanswered = 0
        self._waiting: deque[Any] = deque()

    def transfer(self, message: float) -> Generator[Any, Any, None]:
        """Bring a message to the broker; over when its ACK is back."""
        env, one_way_s = self._broker.environment, self._broker.far.round_trip_s / 2.0
        while self._unanswered >= self._free_slots:
            turn = env.event()
            self._waiting.append(turn)
            yield turn
        self._unanswered += 1
        yield env.timeout(one_way_s)
        free_slots = yield self._broker.offer(message)
        yield env.timeout(one_way_s)
        self._unanswered -= 1
        self._set_free_slots(free_slots)

    def send_update(self, free_slots: int) -> None:
        """Send an update of the free slots; it cannot overtake an ACK, for both take the same time."""
        update = self._broker.environment.timeout(self._broker.far.round_trip_s / 2.0)
        update.callbacks.append(lambda _: self._set_free_slots(free_slots))

    def _set_free_slots(self, free_slots: int) -> None:
        self._free_slots = free_slots
        for _ in range(min(len(self._waiting), max(0, free_slots - self._unanswered))):
            self._waiting.popleft().succeed()


def _fire(event: Any) -> None:
    if not event.triggered:
        event.succeed()
