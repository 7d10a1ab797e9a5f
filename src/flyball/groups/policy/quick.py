"""A valid, sticky plan in little time where members read different topics: greedy, topic by topic.

Every queue that somebody reads gets an owner that reads it; a queue moves only to a member with at least two
queues fewer than its owner. What greedy does not do is to pass a queue on by way of a third member, so the balance
may be short of the best and the moves more than the fewest. A coordinator may carry this plan out at once and the
exact one (`mixed`) after it.

Free queues go to the least loaded readers of their topic, the topics with the fewest readers first. Then, as long
as a topic has an owner with two queues more than one of its readers, its most loaded owners pass queues to its
least loaded readers; members above the mean give first. Work is by arrays of one topic, never queue by queue.
"""

from __future__ import annotations

from heapq import heapify, heapreplace

import numpy as np

from flyball.groups.policy.level_fill import Ints, level_targets
from flyball.groups.policy.load_blocks import Bools

MAX_ROUNDS = 8
"""A round looks at every topic whose owners have too much; the last ones change little."""
_FEW = 100
"""A round that passes on fewer than one queue of so many was the last."""


def assign_quickly(topics: Ints, owners: Ints, reads: Bools, rounds: int = MAX_ROUNDS) -> Ints:
    """Return the owner of each queue, −1 where no member reads its topic; arguments as for `assign_mixed`.

    >>> reads = np.array([[True, True], [False, True]])
    >>> assign_quickly(np.array([0, 0, 0, 1]), np.array([0, 0, 0, -1]), reads).tolist()
    [0, 0, 1, 1]
    """
    members = reads.shape[1]
    if not members:
        return np.full(topics.size, -1)
    assigned = np.where((owners >= 0) & reads[topics, owners], owners, -1)
    keys = _keys(assigned, members)
    _fill(topics, assigned, keys, reads, fewest_readers_first=True)
    floor = -(-np.count_nonzero(assigned >= 0) // members)
    for _ in range(rounds):
        if _pass_on(topics, assigned, keys, reads, floor) * _FEW <= topics.size:
            if not floor:
                break
            floor = 0
    return assigned


def fill_in_order(topics: Ints, owners: Ints, reads: Bools) -> Ints:
    """Leave every queue with its owner; give the free ones, in order, to the least loaded readers, ties by number.

    >>> reads = np.array([[True, True], [True, False]])
    >>> fill_in_order(np.array([0, 0, 1, 1]), np.array([-1, 0, -1, -1]), reads).tolist()
    [1, 0, 0, 0]
    """
    assigned = owners.copy()
    _fill(topics, assigned, _keys(assigned, reads.shape[1]), reads, fewest_readers_first=False)
    return assigned


def _keys(assigned: Ints, members: int) -> Ints:
    """Return a key for each member that orders by load, then by number."""
    loads = np.bincount(assigned[assigned >= 0], minlength=members)
    # Short integers sort several times faster.
    short = (assigned.size + 1) * members < np.iinfo(np.int32).max
    return (loads * members + np.arange(members)).astype(np.int32 if short else np.int64)


def _fill(topics: Ints, assigned: Ints, keys: Ints, reads: Bools, *, fewest_readers_first: bool) -> None:
    """Give every free queue to the least loaded reader of its topic."""
    free = np.flatnonzero(assigned < 0)
    if not free.size:
        return
    free = free[np.argsort(topics[free], kind="stable")]
    wanted, starts = np.unique(topics[free], return_index=True)
    begins, ends = starts.tolist(), np.append(starts, free.size)[1:].tolist()
    readers_of = reads[wanted]
    receivers = np.full(free.size, -1)
    order = list(range(wanted.size))
    if fewest_readers_first:
        order = np.argsort(np.count_nonzero(readers_of, axis=1), kind="stable").tolist()
    for index in order:
        start, end = begins[index], ends[index]
        present = keys[readers_of[index].nonzero()[0]]
        if present.size:
            receivers[start:end] = _receivers(keys, present, end - start, int(fewest_readers_first))
    assigned[free] = receivers


def _receivers(keys: Ints, present: Ints, count: int, tolerance: int) -> Ints | list[int]:
    """Return who of the readers, here by their keys, gets `count` queues, one by one; their keys are counted up.

    Where the loads of the `count` least loaded readers differ by no more than `tolerance`, each gets one.
    """
    members = keys.size
    if present.size <= 2 * count <= 10_000:
        # Few readers: one by one is the quickest.
        heap = present.tolist()
        heapify(heap)
        found = [heapreplace(heap, heap[0] + members) % members for _ in range(count)]
        counted = np.array(heap)
        keys[counted % members] = counted
        return found
    if count <= present.size:
        # The usual case.
        least = np.sort(present)[:count]
        if int(least[-1]) // members - int(least[0]) // members <= tolerance:
            lowest = least % members
            keys[lowest] += members
            return lowest
    lowest = _places(present, count, members)[1]
    np.add.at(keys, lowest, members)
    return lowest


def _pass_on(topics: Ints, assigned: Ints, keys: Ints, reads: Bools, floor: int) -> int:
    """Pass queues of members above `floor` to less loaded readers; how many."""
    members = keys.size
    queues = _movable(topics, assigned, keys, reads, floor)
    wanted, starts = np.unique(topics[queues], return_index=True)
    ends = np.append(starts, queues.size)[1:]
    passed = 0
    for topic, start, end in zip(wanted.tolist(), starts.tolist(), ends.tolist(), strict=True):
        receivers = keys[np.flatnonzero(reads[topic])]
        owners = assigned[queues[start:end]]
        givers = keys[owners]
        # The topics before this one may have done the work.
        if givers.max() // members - receivers.min() // members < 2:
            continue
        # Each queue that its owner gives lowers the owner's load, each that a reader gets raises the reader's.
        order = np.argsort(givers, kind="stable")
        givers = givers[order]
        given = np.searchsorted(givers, givers, side="right") - 1 - np.arange(order.size)
        levels = givers // members - given
        highest = np.argsort(-levels, kind="stable")
        receivers.sort()
        places, to = _places(receivers, order.size, members)
        levels = levels[highest]
        pairs = np.count_nonzero((levels - places >= 2) & (levels > floor))
        if pairs:
            moved, to = order[highest[:pairs]], to[:pairs]
            assigned[queues[start:end][moved]] = to
            np.subtract.at(keys, owners[moved], members)
            np.add.at(keys, to, members)
            passed += int(pairs)
    return passed


def _movable(topics: Ints, assigned: Ints, keys: Ints, reads: Bools, floor: int) -> Ints:
    """Return the queues, by topic, of members above `floor` that some reader has room for."""
    loads = keys // keys.size
    owned = np.flatnonzero(assigned >= 0)
    above = owned[loads[assigned[owned]] > max(floor, loads.min() + 1)]
    wanted, topic = np.unique(topics[above], return_inverse=True)
    # Members in the order of their loads: the first one that reads a topic is its least loaded reader.
    order = np.argsort(keys)
    least = loads[order[reads[np.ix_(wanted, order)].argmax(axis=1)]]
    high = loads[assigned[above]] - least[topic] >= 2
    movable: Ints = above[high][np.argsort(topic[high], kind="stable")]
    return movable


def _places(keys: Ints, count: int, members: int) -> tuple[Ints, Ints]:
    """Return the loads at which the members with these keys receive `count` queues, in order, and the members."""
    loads = (keys // members).astype(np.int64)
    gets = level_targets(loads, count) - loads
    places = np.repeat(loads - np.cumsum(gets) + gets, gets) + np.arange(count)
    order = np.argsort(places, kind="stable")
    return places[order], np.repeat(keys % members, gets)[order]
