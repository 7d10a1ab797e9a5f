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
    wanted = [events * weight + owed for weight, owed in zip(weights, carry, strict=True)]
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


def equal_weights(lanes: int) -> tuple[float, ...]:
    return (1.0 / lanes,) * lanes
