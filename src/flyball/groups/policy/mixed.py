"""Sticky assignment where members read different topics, or where racks count: exact, by flows over classes.

Ranked goals: the best sorted loads; the fewest queues outside their racks; as many queues as possible stay. Queues
that the same members may read and that have the same racks form a class. They are interchangeable but for their
present owners, so the problem is how many queues of a class each member gets, never which queue goes where. Flows
are computed only where no simpler plan can be shown to be as good.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyball.groups.policy.best_loads import most_kept, read_load_blocks
from flyball.groups.policy.cheapest_flow import cheapest_flow
from flyball.groups.policy.equal import last_queues
from flyball.groups.policy.level_fill import Ints
from flyball.groups.policy.load_blocks import Bools, LoadBlocks, equal_rows, find_load_blocks
from flyball.groups.policy.quick import assign_quickly, fill_in_order


@dataclass(frozen=True, slots=True)
class Racks:
    """`rack_set[q]`: the set of racks of queue q. `mismatch[s, m]`: member m is in none of the racks of set s."""

    rack_set: Ints
    mismatch: Bools


def assign_mixed(topics: Ints, owners: Ints, reads: Bools, racks: Racks | None = None) -> Ints:
    """Return the owner of each queue, −1 where no member reads its topic.

    `topics[q]` is the topic of queue q, `owners[q]` its owner now or −1, `reads[t, m]` whether member m reads
    topic t.

    >>> reads = np.array([[True, True], [False, True]])
    >>> assign_mixed(np.array([0, 0, 0, 1]), np.array([0, 0, 0, -1]), reads).tolist()
    [0, 0, 1, 1]
    """
    assigned = np.where((owners >= 0) & reads[topics, owners], owners, -1)
    readable: Bools = np.any(reads, axis=1)
    wanted = np.flatnonzero(readable[topics])
    if not wanted.size:
        return np.full(topics.size, -1)
    first_topic, topic_kind = equal_rows(reads)
    class_of, keys = topic_kind[topics[wanted]], np.arange(first_topic.size)
    mismatch = None
    if racks is not None:
        sets = len(racks.mismatch)
        keys, class_of = np.unique(class_of * sets + racks.rack_set[wanted], return_inverse=True)
        mismatch, keys = racks.mismatch[keys % sets], keys // sets
    readers = reads[first_topic[keys]]
    sizes = np.bincount(class_of, minlength=len(readers))
    used = np.flatnonzero(sizes)
    class_of = (np.cumsum(sizes > 0) - 1)[class_of]
    sizes, readers = sizes[used], readers[used]
    if mismatch is None:
        filled = fill_in_order(topics[wanted], assigned[wanted], reads)
        if read_load_blocks(_count(class_of, filled, readers), readers) is not None:
            # Everything stays and no loads are better.
            assigned[wanted] = filled
            return assigned
        assigned[wanted] = _assign_classes(class_of, assigned[wanted], sizes, readers)
    else:
        assigned[wanted] = _assign_by_flow(
            class_of, assigned[wanted], readers, mismatch[used], find_load_blocks(sizes, readers)
        )
    return assigned


def _assign_classes(class_of: Ints, owners: Ints, sizes: Ints, readers: Bools) -> Ints:
    """Return the quick plan where it can be shown to be the best, else the best by flows."""
    # A plan that takes more rounds is seldom the best.
    quick = assign_quickly(class_of, owners, readers, rounds=3)
    amounts = _count(class_of, quick, readers)
    blocks = read_load_blocks(amounts, readers)
    if blocks is None:
        blocks = find_load_blocks(sizes, readers)
    elif np.count_nonzero((owners >= 0) & (quick == owners)) == most_kept(
        _count(class_of, owners, readers), amounts.sum(axis=0), blocks
    ):
        return quick
    return _assign_by_flow(class_of, owners, readers, np.zeros_like(readers), blocks)


def _assign_by_flow(class_of: Ints, owners: Ints, readers: Bools, mismatch: Bools, blocks: LoadBlocks) -> Ints:
    members = readers.shape[1]
    present = _count(class_of, owners, readers)
    sizes = np.bincount(class_of, minlength=len(readers))
    amounts = cheapest_flow(sizes, present, mismatch, blocks.allowed, blocks.high)
    excess = np.maximum(present - amounts, 0)
    cell_of = np.where(owners >= 0, class_of * members + owners, -1)
    assigned = owners.copy()
    assigned[last_queues(cell_of, excess.reshape(-1))] = -1
    free = np.flatnonzero(assigned < 0)
    free = free[np.argsort(class_of[free], kind="stable")]
    missing = np.maximum(amounts - present, 0)
    of_member = np.nonzero(missing)[1]
    assigned[free] = np.repeat(of_member, missing[missing > 0])
    return assigned


def _count(class_of: Ints, owners: Ints, readers: Bools) -> Ints:
    """Return how many queues of each class each member has."""
    owned = owners >= 0
    cells = class_of[owned] * readers.shape[1] + owners[owned]
    return np.bincount(cells, minlength=readers.size).reshape(readers.shape)
