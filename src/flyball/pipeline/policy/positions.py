"""Where the reading of a log continues, and what it has lost: retention removed it, or the log is another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball.errors import FlyballError

Bounds = tuple[int, int]
"""(first offset still there, offset the next record will get)"""


class DataLost(FlyballError, LookupError):
    """A log no longer has what was still to be read."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Partition `partition` was to be read from `wanted` on, but has the offsets from `first` to before `end`."""

    partition: int
    wanted: int
    first: int
    end: int

    @property
    def in_new_log(self) -> bool:
        """Whether the log is another one than was read before: it ends before the position in it."""
        return self.end < self.wanted

    @property
    def lost(self) -> int:
        """Offsets that are gone; of a log that was created anew it is not known how many."""
        return 0 if self.in_new_log else self.first - self.wanted

    def describe(self, log: str) -> str:
        """
        >>> Gap(0, 100, 3000, 3700).describe("events")
        "offsets 100 to 2999 of partition 0 of the log 'events' were removed before being read"
        >>> Gap(1, 5000, 0, 1000).describe("events")
        "partition 1 of the log 'events' ends at 1000, but was read up to 5000: the log was created anew"
        """
        if self.in_new_log:
            return (
                f"partition {self.partition} of the log {log!r} ends at {self.end}, but was read up to "
                f"{self.wanted}: the log was created anew"
            )
        gone = f"offset {self.wanted}" if self.lost == 1 else f"offsets {self.wanted} to {self.first - 1}"
        verb = "was" if self.lost == 1 else "were"
        return f"{gone} of partition {self.partition} of the log {log!r} {verb} removed before being read"


def continue_from(known: Sequence[int], bounds: Sequence[Bounds]) -> tuple[list[int], list[Gap]]:
    """The next offset of every partition, and the gaps before them.

    Partitions that were added are read from their first record on. A log that is empty has lost nothing: some
    brokers cannot tell it from one that does not answer.

    >>> continue_from([5, 5], [(0, 9), (7, 9), (2, 4)])
    ([5, 7, 2], [Gap(partition=1, wanted=5, first=7, end=9)])
    """
    positions: list[int] = []
    gaps: list[Gap] = []
    for partition, (first, end) in enumerate(bounds):
        wanted = known[partition] if partition < len(known) else first
        gap = Gap(partition, wanted, first, end)
        is_gap = end > 0 and (first > wanted or gap.in_new_log)
        gaps += [gap] if is_gap else []
        positions.append(first if is_gap else wanted)
    # A log with fewer partitions than before is another one.
    gaps += [
        Gap(partition, known[partition], 0, 0) for partition in range(len(bounds), len(known)) if known[partition]
    ]
    return positions, gaps


def have_reached(known: Sequence[int], bounds: Sequence[Bounds]) -> bool:
    """Whether everything that was in the log is read; a partition that is not known yet counts from its beginning.

    >>> have_reached([5], [(0, 5), (3, 3)]), have_reached([5], [(0, 5), (3, 4)])
    (True, False)
    """
    positions, _ = continue_from(known, bounds)
    return all(at >= end for at, (_, end) in zip(positions, bounds, strict=True))
