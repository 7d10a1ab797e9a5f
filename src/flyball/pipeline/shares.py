"""The part of a micro-batch that one lane takes, and what the lane says at its end.

Every lane of a batch says when it has read its share, also an empty one, in one row of kind `end`: which offsets
it covered, how many bodies that were, how long it took and how far event time came before anything was filtered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

END = "end"
"""The `_kind` of the row that ends a lane's share."""

Range = tuple[int, int, int]
"""(partition, first offset, offset after the last)"""


@dataclass(frozen=True, slots=True)
class Share:
    """What one lane reads. `members` are all lanes of the batch; `last`: the lane gets nothing more after it."""

    lane: int
    ranges: tuple[Range, ...]
    members: tuple[int, ...] = (0,)
    last: bool = False

    @property
    def events(self) -> int:
        return sum(stop - first for _, first, stop in self.ranges)


@dataclass(frozen=True, slots=True)
class ShareEnd:
    """`latest_s` is the latest event time seen, `ends`: the input's end was in this share. `sample`: columns of a
    random sample of the share's events, of which there were `sampled_events`."""

    lane: int
    ranges: tuple[Range, ...]
    members: tuple[int, ...]
    last: bool
    bodies: int
    seconds: float
    latest_s: float | None
    ends: bool
    sample: dict[str, list[Any]] | None = None
    sampled_events: int = 0

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
        fields["ranges"] = tuple((part[0], part[1], part[2]) for part in fields["ranges"])
        fields["members"] = tuple(fields["members"])
        return cls(**fields)


@dataclass(slots=True)
class EventTime:
    """How far event time has come among rows read, and whether the end of the input was among them."""

    latest_s: float | None = None
    ends: bool = False
    bodies: int = 0

    def see(self, latest_s: float | None, marks_s: Sequence[float], rows: int) -> None:
        self.bodies += rows - len(marks_s)
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
