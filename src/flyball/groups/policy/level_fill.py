"""Give free queues to the least loaded members, ties by member number, without going queue by queue."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]


def fill_order(loads: Ints, targets: Ints) -> Ints:
    """Return the members in the order in which they receive queues, one entry for each queue.

    Each queue goes to the least loaded member that is below its target, ties to the lowest number. Between two
    neighbouring values of `loads` and `targets` the same members take turns, so each such interval is one
    repetition.

    >>> fill_order(np.array([3, 0, 1]), np.array([3, 3, 2])).tolist()
    [1, 1, 2, 1]
    """
    bounds = np.unique(np.concatenate([loads, targets]))
    parts = []
    for low, high in pairwise(bounds):
        members = np.flatnonzero((loads <= low) & (targets >= high))
        if members.size:
            parts.append(np.tile(members, int(high - low)))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def level_targets(loads: Ints, count: int) -> Ints:
    """Return the loads after `count` queues went, one by one, to the least loaded members, ties to the first.

    >>> level_targets(np.array([3, 0, 1]), 4).tolist()
    [3, 3, 2]
    """
    ordered = np.sort(loads)
    below = np.cumsum(ordered)
    # With the first i + 1 members at the load of the next one, this many queues are used up.
    size = np.arange(1, ordered.size + 1)
    used = ordered * size - below
    active = int(np.searchsorted(used, count, side="right"))
    level, rest = divmod(count + int(below[active - 1]), active)
    targets = np.maximum(loads, level)
    raised = np.flatnonzero(loads <= level)[:rest]
    targets[raised] += 1
    return targets
