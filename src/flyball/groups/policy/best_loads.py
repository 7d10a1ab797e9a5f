"""Whether a plan has the best loads, and keeps the most: a proof that costs far less than to find such a plan.

A member can pass a queue on to every reader of its class, and so, by way of others, to all that these can reach.
The loads are the best if nobody reaches a member with two or more queues fewer. From such a plan the blocks of
`load_blocks` can be read: a member may have one queue more than now if somebody with one more reaches it.
"""

from __future__ import annotations

import numpy as np

from flyball.groups.policy.level_fill import Ints
from flyball.groups.policy.load_blocks import Bools, LoadBlocks


def read_load_blocks(amounts: Ints, readers: Bools) -> LoadBlocks | None:
    """Return the blocks if no plan has better loads than this one, else None.

    `amounts[c, m]`: queues of class c that member m gets; `readers[c, m]`: whether member m reads class c.

    >>> reads = np.array([[True, True, False], [False, True, True]])
    >>> read_load_blocks(np.array([[3, 0, 0], [0, 1, 1]]), reads) is None
    True
    >>> blocks = read_load_blocks(np.array([[2, 1, 0], [0, 1, 1]]), reads)
    >>> blocks.high.tolist()
    [2, 2, 2]
    """
    loads, owned = amounts.sum(axis=0), amounts > 0
    if np.any(loads - _least_reachable(loads, np.ascontiguousarray(readers.T), owned) >= 2):
        return None
    reached_from = -_least_reachable(-loads, np.ascontiguousarray(owned.T), readers)
    high = np.where(reached_from > loads, loads + 1, loads)
    levels = np.where(readers, high, np.iinfo(np.int64).max)
    return LoadBlocks(high, readers & (high == levels.min(axis=1)[:, None]))


def most_kept(present: Ints, loads: Ints, blocks: LoadBlocks) -> int:
    """Return a number that no plan with the best loads exceeds in queues that stay.

    `present[c, m]`: queues of class c that member m has now; `loads`: the loads of any such plan.
    """
    held = np.where(blocks.allowed, present, 0).sum(axis=0)
    most = 0
    for high in np.unique(blocks.high).tolist():
        inside = blocks.high == high
        full = min(np.count_nonzero(loads[inside] == high), np.count_nonzero(held[inside] >= high))
        most += int(np.minimum(held[inside], high - 1).sum()) + int(full) if high else 0
    return most


def _least_reachable(loads: Ints, entries: Bools, exits: Bools) -> Ints:
    """Return the least load that each member can reach.

    `exits[c, m]`: a step leads from member m to class c; `entries[m, c]`: a step leads from class c to member m.
    Members are visited backwards from the least load, so each only once.
    """
    least = loads.copy()
    new_class, new_member = np.ones(len(exits), bool), np.ones(loads.size, bool)
    for load in np.unique(loads):
        members = np.flatnonzero(new_member & (loads == load))
        while members.size:
            new_member[members] = False
            least[members] = load
            classes = np.flatnonzero(entries[members].any(axis=0) & new_class)
            new_class[classes] = False
            members = np.flatnonzero(exits[classes].any(axis=0) & new_member)
    return least
