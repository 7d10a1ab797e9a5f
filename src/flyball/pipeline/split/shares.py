"""The part of a micro-batch that one lane reads, and the row that reports its end.

Every lane of a batch reports the end of its share, also of an empty one, in one row of kind `end`: its offsets,
the number of bodies, the time it needed, and the latest event time before anything was filtered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

END = "end"
"""The `_kind` of the row that ends a lane's share."""

Range = tuple[int, int, int]
"""(partition, first offset, offset after the last)"""


def ranges_of(parts: Iterable[Sequence[int]]) -> tuple[Range, ...]:
    """Ranges as JSON hands them back."""
    return tuple((part[0], part[1], part[2]) for part in parts)


def events_in(ranges: Iterable[Range]) -> int:
    """
    >>> events_in([(0, 5, 9), (1, 0, 2)])
    6
    """
    return sum(stop - first for _, first, stop in ranges)


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Ranges that follow each other as one: reading a range has a fixed cost.

    >>> merged([(0, 5, 9), (0, 9, 12), (0, 20, 21)])
    ((0, 5, 12), (0, 20, 21))
    """
    out: list[Range] = []
    for partition, first, stop in ranges:
        if out and out[-1][0] == partition and out[-1][2] == first:
            out[-1] = (partition, out[-1][1], stop)
        else:
            out.append((partition, first, stop))
    return tuple(out)


def first_events(ranges: Iterable[Range], count: int) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """Cut ranges in two: the first `count` events, and the others.

    >>> first_events([(0, 5, 9), (1, 0, 2)], 5)
    (((0, 5, 9), (1, 0, 1)), ((1, 1, 2),))
    """
    head: list[Range] = []
    rest: list[Range] = []
    for partition, first, stop in ranges:
        middle = min(stop, first + count)
        count -= middle - first
        head += [(partition, first, middle)] if middle > first else []
        rest += [(partition, middle, stop)] if stop > middle else []
    return tuple(head), tuple(rest)


@dataclass(frozen=True, slots=True)
class Share:
    """What one lane reads in a batch. `members`: all lanes of the batch; `last`: the lane leaves after it.

    `tick`: the last tick that this share completes (None: the batch itself is the tick); `more`: the first part of
    the next tick, whose rest follows later. `cycle`: events and seconds of the lane's previous batch.
    `events_read_total`: events of the lane's ticks that are read by the end of this batch, in total.
    `sampling_weight`: events of all lanes per event of this share.
    """

    lane: int
    ranges: tuple[Range, ...]
    members: tuple[int, ...] = (0,)
    last: bool = False
    tick: int | None = None
    more: tuple[Range, ...] = ()
    cycle: tuple[int, float] | None = None
    events_read_total: int = 0
    sampling_weight: float = 1.0

    @property
    def events(self) -> int:
        return events_in(self.ranges) + events_in(self.more)


@dataclass(frozen=True, slots=True)
class ShareEnd:
    """What became of a share. `latest_s`: latest event time of complete ticks; `ends`: the input ends in them.

    `sample`: columns of a random sample of the share's `sampled_events` events, each of which stands for
    `sampling_weight` events of all lanes.
    """

    lane: int
    ranges: tuple[Range, ...]
    members: tuple[int, ...]
    last: bool
    bodies: int
    seconds: float
    latest_s: float | None
    ends: bool
    tick: int | None = None
    cycle: tuple[int, float] | None = None
    events_read_total: int = 0
    sample: dict[str, list[Any]] | None = None
    sampled_events: int = 0
    sampling_weight: float = 1.0
    marks: dict[str, float] = field(default_factory=dict)
    """latest watermark mark of each upstream pipeline"""

    @classmethod
    def of(cls, share: Share, seen: EventTime, seconds: float) -> ShareEnd:
        return cls(
            share.lane,
            share.ranges + share.more,
            share.members,
            share.last,
            seen.bodies,
            seconds,
            seen.latest_s,
            seen.ends,
            share.tick,
            share.cycle,
            share.events_read_total,
            sampling_weight=share.sampling_weight,
            marks=seen.marks,
        )

    @classmethod
    def joined(cls, parts: Sequence[ShareEnd]) -> ShareEnd:
        """The end of a share that several tasks read at the same time.

        >>> parts = [ShareEnd(1, ((0, n, n + 1),), (1,), False, 1, 0.5 + n, 12.0 - n, n == 0, 7) for n in (0, 1)]
        >>> joined = ShareEnd.joined(parts)
        >>> joined.ranges, joined.bodies, joined.seconds, joined.latest_s, joined.ends
        (((0, 0, 1), (0, 1, 2)), 2, 1.5, 12.0, True)
        """
        seen = EventTime()
        for end in parts:
            seen.promised(end.marks.items())
        return replace(
            parts[0],
            marks=seen.marks,
            ranges=tuple(part for end in parts for part in end.ranges),
            bodies=sum(end.bodies for end in parts),
            seconds=max(end.seconds for end in parts),
            latest_s=max((end.latest_s for end in parts if end.latest_s is not None), default=None),
            ends=any(end.ends for end in parts),
        )

    def to_json(self) -> bytes:
        """
        >>> end = ShareEnd(1, ((0, 5, 9),), (0, 1), False, 4, 0.5, 12.0, False)
        >>> ShareEnd.from_json(end.to_json()) == end
        True
        """
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, body: bytes) -> ShareEnd:
        fields: dict[str, Any] = json.loads(body)
        fields["ranges"] = ranges_of(fields["ranges"])
        fields["members"] = tuple(fields["members"])
        fields["cycle"] = tuple(fields["cycle"]) if fields["cycle"] else None
        return cls(**fields)


@dataclass(slots=True)
class EventTime:
    """The latest event time among the rows read, and whether the end of the input was among them."""

    latest_s: float | None = None
    ends: bool = False
    bodies: int = 0
    marks: dict[str, float] = field(default_factory=dict)

    def promised(self, marks: Iterable[tuple[str, float]]) -> None:
        """Marks of the pipelines that write the input."""
        for source, time_s in marks:
            if source:
                self.marks[source] = max(time_s, self.marks.get(source, -math.inf))

    def see(self, latest_s: float | None, marks_s: Sequence[float]) -> None:
        times = [time for time in (self.latest_s, latest_s, *marks_s) if time is not None and math.isfinite(time)]
        self.latest_s = max(times, default=None)
        self.ends = self.ends or any(time == math.inf for time in marks_s)


def cut(
    starts: Sequence[int], stops: Sequence[int], counts: Sequence[int], lanes: Sequence[int]
) -> list[tuple[Range, ...]]:
    """Share out ranges of offsets, one a partition, so that lane i gets counts[i] of them in one piece.

    >>> cut([0, 100], [10, 104], [8, 6], [0, 1])
    [((0, 0, 8),), ((0, 8, 10), (1, 100, 104))]
    """
    shares: list[list[Range]] = [[] for _ in lanes]
    partition, at = 0, starts[0] if starts else 0
    for lane, count in enumerate(counts):
        while count > 0 and partition < len(starts):
            take = min(count, stops[partition] - at)
            if take > 0:
                shares[lane].append((partition, at, at + take))
            count -= take
            at += take
            if at >= stops[partition]:
                partition += 1
                at = starts[partition] if partition < len(starts) else 0
    return [tuple(share) for share in shares]
