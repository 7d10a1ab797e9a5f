"""The part of a micro-batch that one lane takes, and what the lane says at its end.

Every lane of a batch says when it has read its share, also an empty one, in one row of kind `end`: which offsets
it covered, how many bodies that were, how long it took and how far event time came before anything was filtered.
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
    """What one lane reads. `members` are all lanes of the batch; `last`: the lane gets nothing more after it.

    `mark` is the last tick that is complete with it (None: the batch itself is the tick), `more` belongs to the
    tick after that, whose rest comes later. `cycle` is what the lane's batch before was like: events, seconds.
    `taken`: of all that ticks ever gave to the lane, so much was read by the end of the batch. `stands_for`:
    events that all lanes got for each of this share's.
    """

    lane: int
    ranges: tuple[Range, ...]
    members: tuple[int, ...] = (0,)
    last: bool = False
    mark: int | None = None
    more: tuple[Range, ...] = ()
    cycle: tuple[int, float] | None = None
    taken: int = 0
    stands_for: float = 1.0

    @property
    def events(self) -> int:
        return events_in(self.ranges) + events_in(self.more)


@dataclass(frozen=True, slots=True)
class ShareEnd:
    """`latest_s` is the latest event time seen in complete ticks, `ends`: the input's end was in them.
    `sample`: columns of a random sample of the share's events, of which there were `sampled_events`, each for
    `stands_for` of all lanes."""

    lane: int
    ranges: tuple[Range, ...]
    members: tuple[int, ...]
    last: bool
    bodies: int
    seconds: float
    latest_s: float | None
    ends: bool
    mark: int | None = None
    cycle: tuple[int, float] | None = None
    taken: int = 0
    sample: dict[str, list[Any]] | None = None
    sampled_events: int = 0
    stands_for: float = 1.0
    marks: dict[str, float] = field(default_factory=dict)
    """of pipelines that write the input: the latest of each"""

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
            share.mark,
            share.cycle,
            share.taken,
            stands_for=share.stands_for,
            marks=seen.marks,
        )

    @classmethod
    def joined(cls, parts: Sequence[ShareEnd]) -> ShareEnd:
        """Of one lane whose share was read by several tasks at the same time.

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
    """How far event time has come among rows read, and whether the end of the input was among them."""

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
