"""Which loads the members of a group can have at best, when they read different topics.

Queues of one *class* may be read by the same members. The best loads are those whose list, sorted from the
largest, is the smallest: no queue sits with a member that could pass it on, also by way of others, to a member
with two or more fewer. All best assignments have this in common: members fall into *blocks*; in a block every load
is `high` or `high` − 1, and a class is read only in the block with the lowest loads among its readers.

A block is found by cutting. With room for t queues at each member, let as many queues as possible find a member
(maximum flow). If some do not, the members that those could reach have loads of t or more whatever one does, and
the others t or less, so that both parts can be looked at by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from flyball.groups.policy.level_fill import Ints

Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LoadBlocks:
    """`high[m]`: member m gets this many queues or one fewer. `allowed[c, m]`: in a best assignment member m may
    read class c."""

    high: Ints
    allowed: Bools


def find_load_blocks(sizes: Ints, readers: Bools) -> LoadBlocks:
    """Find the blocks for classes of `sizes` queues, of which class c is read by the members with `readers[c]`.

    Every class must have a reader. Members that read the same classes are interchangeable here, so only the kinds
    of members count.
    """
    first, kind_of = equal_rows(readers.T)
    kinds, numbers = readers[:, first], np.bincount(kind_of)
    high_of_kind = np.zeros(numbers.size, np.int64)
    waiting = [(np.arange(sizes.size), np.flatnonzero(kinds.any(axis=0)))]
    while waiting:
        classes, members = waiting.pop()
        if not members.size:
            continue
        total, size = int(sizes[classes].sum()), int(numbers[members].sum())
        mean_up = -(-total // size)
        # Loads of mean_up or one less for all, if no class has too many queues for its readers, no reader too few.
        for limit in (mean_up, mean_up - 1):
            stuck_classes, stuck_members = _cut(
                sizes[classes], kinds[np.ix_(classes, members)], numbers[members], limit
            )
            if 0 < np.count_nonzero(stuck_members) < members.size:
                waiting.append((classes[stuck_classes], members[stuck_members]))
                waiting.append((classes[~stuck_classes], members[~stuck_members]))
                break
        else:
            high_of_kind[members] = mean_up
    high = high_of_kind[kind_of]
    levels = np.where(readers, high, np.iinfo(np.int64).max)
    return LoadBlocks(high, readers & (high == levels.min(axis=1)[:, None]))


def equal_rows(rows: Bools) -> tuple[Ints, Ints]:
    """Return the first row of each kind, and the kind of each row: rows of one kind are equal."""
    packed = (
        np.ascontiguousarray(np.packbits(rows, axis=1)) if rows.shape[1] else np.zeros((len(rows), 1), np.uint8)
    )
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
    _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)


def _cut(sizes: Ints, readers: Bools, numbers: Ints, limit: int) -> tuple[Bools, Bools]:
    """Return the classes that `limit` queues a member leave no room for, and the members they could reach."""
    classes, members = readers.shape
    of_class, of_member = np.nonzero(readers)
    source, sink = classes + members, classes + members + 1
    plenty = int(sizes.sum())
    heads = np.concatenate([np.full(classes, source), of_class, classes + np.arange(members)])
    tails = np.concatenate([np.arange(classes), classes + of_member, np.full(members, sink)])
    room = np.concatenate([sizes, np.full(of_class.size, plenty), numbers * limit])
    graph = coo_array((room.astype(np.int32), (heads, tails)), shape=(sink + 1, sink + 1)).tocsr()
    flow = maximum_flow(graph, source, sink).flow
    residual = (graph - flow).tocsr()
    residual.data = (residual.data > 0).astype(np.int32)
    residual.eliminate_zeros()
    reached = np.zeros(sink + 1, bool)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    return reached[:classes], reached[classes:source]
