"""The cheapest way to give queues to members within their limits: a minimum-cost flow, exact.

Classes of queues on one side, members on the other. A queue costs `mismatch` where the member's rack is not one of
its own, and one more unit beyond those that the member has now; a mismatch counts more than all moves together.
Each member gets `high` − 1 queues or `high`: the last one costs more than everything else, so that lower limits
come first.

Queues that stay at no cost are where they are at the beginning. The rest is sent along shortest paths, in which
queues may push others on, always all paths of one length at once (a maximum flow in the graph of arcs that lie on
shortest paths). Paths only become longer, and there are few lengths, so there are few rounds. An arc is a class
and a member that may read it; arcs are lists, since most members may read few classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from flyball.groups.policy.level_fill import Ints
from flyball.groups.policy.load_blocks import Bools

_FAR = np.int64(1) << 50


def cheapest_flow(sizes: Ints, present: Ints, mismatch: Bools, allowed: Bools, high: Ints) -> Ints:
    """Return how many queues of each class each member gets.

    `present[c, m]`: queues of class c that member m has now. `allowed` and `high` are those of the best loads
    (`load_blocks`), so that such a flow exists.
    """
    arcs = _Arcs.of(sizes, present, mismatch, allowed)
    low = np.maximum(high - 1, 0)
    waiting = sizes - np.bincount(arcs.of_class, arcs.flow, sizes.size).astype(np.int64)
    # What a member has beyond its lower limit waits at the member; the upper place is dear, so it is filled last.
    loads = np.bincount(arcs.of_member, arcs.flow, high.size).astype(np.int64)
    surplus = np.maximum(loads - low, 0)
    settled = np.minimum(loads, low)
    upper = np.zeros_like(high)
    last = arcs.plenty * arcs.plenty
    potentials = _Distances(np.zeros(sizes.size, np.int64), np.zeros(high.size, np.int64), np.int64(0))
    while waiting.any() or surplus.any():
        end = np.where(settled < low, 0, np.where((upper < 1) & (high > 0), last, _FAR))
        end_room = np.where(settled < low, low - settled, 1)
        # Reduced costs are never negative: potentials are distances so far.
        end_cost = np.where(end < _FAR, end + potentials.to_member - potentials.to_sink, _FAR)
        near = _find_distances(arcs, potentials, waiting > 0, surplus > 0, end_cost)
        potentials = potentials.plus(near)
        end_open = (near.to_member <= near.to_sink) & (end_cost + near.to_member == near.to_sink)
        from_class, from_member, ended = _send(
            arcs,
            _open_arcs(arcs, potentials, near),
            waiting,
            surplus,
            np.where(end_open, end_room, 0),
        )
        waiting, surplus = waiting - from_class, surplus - from_member
        lower = np.where(settled < low, ended, 0)
        settled, upper = settled + lower, upper + ended - lower
    amounts = np.zeros_like(present)
    amounts[arcs.of_class, arcs.of_member] = arcs.flow
    return amounts


@dataclass(frozen=True, slots=True)
class _Arcs:
    """Arcs in the order of their classes; those of class c begin at `begins[c]`. `flow` changes in place."""

    of_class: Ints
    of_member: Ints
    begins: Ints
    price: Ints
    present: Ints
    flow: Ints
    plenty: int
    """more than all queues"""

    @classmethod
    def of(cls, sizes: Ints, present: Ints, mismatch: Bools, allowed: Bools) -> _Arcs:
        of_class, of_member = np.nonzero(allowed)
        plenty = int(sizes.sum()) + 1
        price = np.where(mismatch[of_class, of_member], plenty, 0)
        here = present[of_class, of_member]
        return cls(
            of_class,
            of_member,
            np.searchsorted(of_class, np.arange(sizes.size + 1)),
            price,
            here,
            np.where(price == 0, here, 0),
            plenty,
        )

    def leaving(self, classes: Ints) -> Ints:
        """The arcs of these classes."""
        begins = self.begins[classes]
        return _ranges(begins, self.begins[classes + 1] - begins)

    def costs(self, arcs: Ints) -> Ints:
        """What one more queue costs."""
        return self.price[arcs] + (self.flow[arcs] >= self.present[arcs])

    def refunds(self, arcs: Ints) -> Ints:
        """What one queue fewer saves."""
        return self.price[arcs] + (self.flow[arcs] > self.present[arcs])


@dataclass(frozen=True, slots=True)
class _Distances:
    to_class: Ints
    to_member: Ints
    to_sink: np.int64

    def plus(self, other: _Distances) -> _Distances:
        limit = other.to_sink
        return _Distances(
            self.to_class + np.minimum(other.to_class, limit),
            self.to_member + np.minimum(other.to_member, limit),
            self.to_sink + limit,
        )


def _find_distances(
    arcs: _Arcs, potentials: _Distances, class_starts: Bools, member_starts: Bools, end_cost: Ints
) -> _Distances:
    """Return the lengths of the shortest paths from where queues wait, as far as the sink (Dijkstra).

    All nodes of one distance are looked at together, and every arc once.
    """
    to_class, to_member = np.where(class_starts, 0, _FAR), np.where(member_starts, 0, _FAR)
    open_class, open_member = to_class.copy(), to_member.copy()
    used = np.flatnonzero(arcs.flow > 0)
    used = used[np.argsort(arcs.of_member[used].astype(np.min_scalar_type(to_member.size)), kind="stable")]
    begins = np.searchsorted(arcs.of_member[used], np.arange(to_member.size + 1))
    to_sink = (to_member + end_cost).min(initial=_FAR)
    while True:
        distance = min(open_class.min(initial=_FAR), open_member.min(initial=_FAR))
        if distance > to_sink or distance >= _FAR:
            return _Distances(to_class, to_member, to_sink)
        classes, members = np.flatnonzero(open_class == distance), np.flatnonzero(open_member == distance)
        open_class[classes] = open_member[members] = _FAR
        if classes.size:
            forward = arcs.leaving(classes)
            head, tail = arcs.of_class[forward], arcs.of_member[forward]
            length = distance + arcs.costs(forward) + potentials.to_class[head] - potentials.to_member[tail]
            _shorten(to_member, open_member, tail, length)
            to_sink = min(to_sink, (to_member + end_cost).min(initial=_FAR))
        if members.size:
            back = used[_ranges(begins[members], begins[members + 1] - begins[members])]
            head, tail = arcs.of_class[back], arcs.of_member[back]
            length = distance - arcs.refunds(back) + potentials.to_member[tail] - potentials.to_class[head]
            _shorten(to_class, open_class, head, length)


def _shorten(distances: Ints, waiting: Ints, nodes: Ints, lengths: Ints) -> None:
    shorter = lengths < distances[nodes]
    nodes, lengths = nodes[shorter], lengths[shorter]
    np.minimum.at(distances, nodes, lengths)
    waiting[nodes] = distances[nodes]


def _open_arcs(arcs: _Arcs, potentials: _Distances, near: _Distances) -> tuple[Ints, Ints]:
    """Return the arcs on shortest paths, forward and back."""
    near_class, near_member = near.to_class <= near.to_sink, near.to_member <= near.to_sink
    forward = arcs.leaving(np.flatnonzero(near_class))
    forward = forward[near_member[arcs.of_member[forward]]]
    difference = potentials.to_member[arcs.of_member[forward]] - potentials.to_class[arcs.of_class[forward]]
    back = forward[arcs.flow[forward] > 0]
    difference_back = difference[arcs.flow[forward] > 0]
    return forward[arcs.costs(forward) == difference], back[arcs.refunds(back) == difference_back]


def _send(
    arcs: _Arcs, open_arcs: tuple[Ints, Ints], waiting: Ints, surplus: Ints, end_room: Ints
) -> tuple[Ints, Ints, Ints]:
    """Send what fits through the open arcs: where it began, at classes and members, and where it ended."""
    forward, back = open_arcs
    classes, members = waiting.size, surplus.size
    source, sink = classes + members, classes + members + 1
    from_class, from_member, end_member = (
        np.flatnonzero(waiting),
        np.flatnonzero(surplus),
        np.flatnonzero(end_room),
    )
    starts = np.full(from_class.size + from_member.size, source)
    heads = np.concatenate([starts, arcs.of_class[forward], classes + arcs.of_member[back], classes + end_member])
    tails = np.concatenate(
        [
            from_class,
            classes + from_member,
            classes + arcs.of_member[forward],
            arcs.of_class[back],
            np.full(end_member.size, sink),
        ]
    )
    present, flow = arcs.present, arcs.flow
    forward_room = np.where(flow[forward] < present[forward], present[forward] - flow[forward], arcs.plenty)
    back_room = np.where(flow[back] > present[back], flow[back] - present[back], flow[back])
    room = np.concatenate(
        [waiting[from_class], surplus[from_member], forward_room, back_room, end_room[end_member]]
    )
    graph = coo_array((room.astype(np.int32), (heads, tails)), shape=(sink + 1, sink + 1)).tocsr()
    sent = maximum_flow(graph, source, sink).flow.tocoo()
    positive = sent.data > 0
    head, tail, amount = (part[positive].astype(np.int64) for part in (sent.row, sent.col, sent.data))
    of_class, of_member, ended = (np.zeros(size, np.int64) for size in (classes, members, members))
    adds, removes = (head < classes) & (tail < source), (tail < classes) & (head < source)
    for head_class, tail_member, signed in (
        (head[adds], tail[adds], amount[adds]),
        (tail[removes], head[removes], -amount[removes]),
    ):
        flow[_positions(arcs, head_class, tail_member - classes)] += signed
    ends, begins = tail == sink, head == source
    ended[head[ends] - classes] = amount[ends]
    at_class, at_member = begins & (tail < classes), begins & (tail >= classes)
    of_class[tail[at_class]] = amount[at_class]
    of_member[tail[at_member] - classes] = amount[at_member]
    return of_class, of_member, ended


def _positions(arcs: _Arcs, classes: Ints, members: Ints) -> Ints:
    """Return where these arcs are in the list, which is in the order of classes, then members."""
    width = int(arcs.of_member.max(initial=0)) + 1
    found: Ints = np.searchsorted(arcs.of_class * width + arcs.of_member, classes * width + members)
    return found


def _ranges(begins: Ints, lengths: Ints) -> Ints:
    """Return the numbers of all ranges, one after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(begins - ends + lengths, lengths) + np.arange(total)
