"""Which lane gets how many events of a tick: error diffusion by weights."""

from __future__ import annotations

import math
from collections.abc import Sequence


def split(
    events: int, weights: Sequence[float], carry: Sequence[float]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Whole numbers of events by weights, and the rounding errors to carry into the next tick.

    The errors always sum to zero and stay below one event a lane, so shares are exact in the long run however
    small the ticks are.

    >>> counts, carry = split(1, [0.5, 0.5], [0.0, 0.0])
    >>> counts, split(1, [0.5, 0.5], carry)[0]
    ((1, 0), (0, 1))
    """
    wanted = [events * weight + error for weight, error in zip(weights, carry, strict=True)]
    counts = [max(0, math.floor(share)) for share in wanted]
    by_fraction = sorted(range(len(wanted)), key=lambda lane: (counts[lane] - wanted[lane], lane))
    for lane in by_fraction[: max(0, events - sum(counts))]:
        counts[lane] += 1
    surplus = sum(counts) - events  # a negative carry was cut at zero: take it from those that got most
    for lane in sorted(range(len(wanted)), key=lambda lane: wanted[lane] - counts[lane]):
        less = min(surplus, counts[lane])
        counts[lane] -= less
        surplus -= less
    return tuple(counts), tuple(share - count for share, count in zip(wanted, counts, strict=True))


def room_ahead(ahead: int, weights: Sequence[float], backlogs: Sequence[int]) -> int:
    """How many events to share out now so that about `ahead` wait for each lane, and not many more.

    A stopped lane delays the others by its weight only, which balancing reduces.

    >>> room_ahead(1000, [0.5, 0.5], [0, 0]), room_ahead(1000, [0.5, 0.5], [1000, 5000])
    (2000, 0)
    >>> room_ahead(1000, [0.9, 0.1], [0, 5000])
    1097
    """
    waiting = sum(weight * min(backlog, ahead) for weight, backlog in zip(weights, backlogs, strict=True))
    return max(0, math.floor((ahead - waiting) / sum(weight * weight for weight in weights)))


def equal_weights(lanes: int) -> tuple[float, ...]:
    return (1.0 / lanes,) * lanes


def within_budget(starts: Sequence[int], waiting: Sequence[int], budget: int) -> list[int]:
    """How far each partition may go so that together they bring at most `budget` rows.

    Partitions with less than an equal share leave the rest of it to the others, so none starves.

    >>> within_budget([0, 0, 0], [10, 100, 100], 90)
    [10, 40, 40]
    """
    stops = list(starts)
    smallest_first = sorted(range(len(waiting)), key=lambda number: waiting[number])
    for others, number in zip(range(len(waiting), 0, -1), smallest_first, strict=True):
        admitted = min(waiting[number], budget // others)
        stops[number] += admitted
        budget -= admitted
    return stops
