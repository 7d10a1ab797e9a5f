"""Sticky assignment where every member reads every topic: arrays, linear in the number of queues.

Ranked goals: loads differ by at most one; as many queues as possible stay. Both are reached exactly. Queues are
numbered in ascending order and members in the order of their ids; owner −1 means that nobody owns the queue.

With n queues and k members each gets n div k or one more, and n mod k of them get one more. A member that has at
least that many keeps them; where more than n mod k members could keep one more, the first ones do. A member gives
its last queues away.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flyball.groups.policy.level_fill import Ints, fill_order, level_targets


def assign_equal(owners: NDArray[np.signedinteger], members: int) -> Ints:
    """Return the owner of each queue.

    >>> assign_equal(np.array([0, -1, 2, 0, -1, 2, 0, -1]), 3).tolist()  # member 1 is new
    [0, 1, 2, 0, 1, 2, 0, 1]
    """
    assigned = owners.astype(np.int64)
    loads = np.bincount(assigned + 1, minlength=members + 1)[1:]
    excess = loads - _limits(loads, owners.size)
    if np.any(excess > 0):
        assigned[last_queues(assigned, np.maximum(excess, 0))] = -1
        loads = np.minimum(loads, loads - excess)
    free = np.flatnonzero(assigned < 0)
    assigned[free] = fill_order(loads, level_targets(loads, free.size))
    return assigned


def _limits(loads: Ints, queues: int) -> Ints:
    """Return the most that each member may keep."""
    least, larger = divmod(queues, loads.size)
    limits = np.full(loads.size, least)
    limits[np.flatnonzero(loads > least)[:larger]] += 1
    return limits


def last_queues(owners: Ints, counts: Ints) -> Ints:
    """Return the last `counts[m]` queues of every owner m."""
    # Owner −1 is the last entry.
    queues = np.flatnonzero(np.append(counts > 0, False)[owners])
    holders = owners[queues]
    order = np.argsort(holders, kind="stable")
    holders = holders[order]
    ends = np.searchsorted(holders, holders, side="right")
    rank_from_end = ends - np.arange(holders.size)
    return queues[order[rank_from_end <= counts[holders]]]
