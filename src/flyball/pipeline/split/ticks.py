"""Ticks: entries of the log by which the splitter assigns input to the lanes.

A tick names, for every lane, the ranges of the input log that are the lane's from then on. Events are not copied:
a lane reads its ranges from the input log itself, so the splitter never sees an event's content, keeps no state,
and one append gives every lane its share and its mark, or none of them. Each tick has the next input offsets and
the rounding errors, so that after a crash the last tick is all that a splitter needs.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flyball.brokers.log_reader import LogReader
from flyball.errors import FlyballError
from flyball.pipeline.split.shares import Range, events_in, ranges_of


class TicksLost(FlyballError, LookupError):
    """The log of ticks no longer has what a lane still needs."""


def ticks_name(results: str) -> str:
    """
    >>> ticks_name("results")
    'results.ticks'
    """
    return f"{results}.ticks"


_STORED_AS = {"leaving": "left", "assigned_events": "given"}


@dataclass(frozen=True, slots=True)
class Tick:
    """One assignment of input to lanes.

    `next`: next offset of each input partition. `shares`: of every member, also an empty one. `leaving`: lanes
    that get nothing more. `carry`: rounding errors of the members, in their order. `assigned_events`: by lane,
    all that it ever got. `delays_s`: the predicted delays that the weights come from.
    """

    number: int
    next: tuple[int, ...]
    shares: Mapping[int, tuple[Range, ...]]
    leaving: tuple[int, ...]
    carry: tuple[float, ...]
    weights: tuple[float, ...]
    assigned_events: Mapping[int, int]
    delays_s: tuple[float | None, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self.shares)

    def sampling_weight(self, lane: int) -> float:
        """Events that all lanes get for each that this one gets.

        >>> Tick(3, (8,), {0: ((0, 0, 2),), 1: ((0, 2, 8),)}, (), (), (), {}).sampling_weight(0)
        4.0
        """
        own = events_in(self.shares.get(lane, ()))
        return sum(map(events_in, self.shares.values())) / own if own else 1.0

    def to_json(self) -> bytes:
        """
        >>> tick = Tick(3, (9,), {0: ((0, 5, 9),), 1: ()}, (2,), (0.5, -0.5), (0.5, 0.5), {0: 9, 1: 4})
        >>> Tick.from_json(tick.to_json()) == tick
        True
        """
        fields = {_STORED_AS.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, body: bytes) -> Tick:
        fields: dict[str, Any] = json.loads(body)
        return cls(
            number=fields["number"],
            next=tuple(fields["next"]),
            shares={int(lane): ranges_of(ranges) for lane, ranges in fields["shares"].items()},
            leaving=tuple(fields["left"]),
            carry=tuple(fields["carry"]),
            weights=tuple(fields["weights"]),
            assigned_events={int(lane): events for lane, events in fields["given"].items()},
            delays_s=tuple(fields["delays_s"]),
        )


class UnreadTicks:
    """The ticks that a lane has not processed yet, oldest first, each with its offset in the log of ticks."""

    def __init__(self, reader: LogReader, lane: int) -> None:
        self._reader, self._lane = reader, lane
        self._ticks: deque[tuple[int, Tick]] = deque()
        self._fetched: int | None = None
        self.events = 0
        """of this lane in them"""

    def after(self, position: int) -> deque[tuple[int, Tick]]:
        """The ticks from that offset on."""
        if self._fetched is None or self._fetched < position:
            self._ticks.clear()
            self._fetched, self.events = position, 0
        while self._ticks and self._ticks[0][0] < position:
            self.events -= self._own(self._ticks.popleft()[1])
        self._fetch(self._fetched)
        return self._ticks

    def _fetch(self, begin: int) -> None:
        first, end = self._reader.bounds(0)
        if first > begin and end > first:
            raise TicksLost(
                f"lane {self._lane} still needs ticks from {begin} on, but their log begins at {first}: it was "
                "down for too long; start with a new folder and new logs"
            )
        if end <= begin:
            return
        for chunk in self._reader.read_bodies(0, begin, end):
            offsets = chunk.offsets or range(chunk.first_offset, chunk.first_offset + len(chunk.bodies))
            for offset, body in zip(offsets, chunk.bodies, strict=True):
                tick = Tick.from_json(body)
                self._ticks.append((offset, tick))
                self.events += self._own(tick)
        self._fetched = end

    def _own(self, tick: Tick) -> int:
        return events_in(tick.shares.get(self._lane, ()))
