"""How many producers and consumers each node should have, with the fewest moves.

Ranked goals:

1. No overload: N_i + M_i <= C_i, wherever the clients fit into the cluster.
2. Balance: N_i is Nc·C_i/Cc rounded up or down, and M_i likewise: within one client of the optimum.
3. Few moves.
4. Producers and consumers of a node match (x_i = y_i).

The second leaves open which nodes are rounded up: a_i, b_i in {0, 1} with given sums. The first choice keeps the
most clients; then nodes that it overloads hand a place to others, always by the cheapest exchange. There is always
a solution without overload: rounding a table so that its entries, row sums and column sums are all rounded up or
down is possible for every table, and Nc·C_i/Cc + Mc·C_i/Cc <= C_i. The exchanges are the residual cycles of a
minimum-cost flow (two rows, one column a node), so that the result is exactly the fewest moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

_OVERLOAD = 1000
"""Cost of a client above the capacity, in moves: more than any exchange of places can save."""


class _Rounding(NamedTuple):
    """How a node is rounded. Nodes that are alike in this are interchangeable. Pairs: producers, consumers."""

    slack: int
    """How many of the two may be rounded up without overload."""
    fractional: tuple[bool, bool]
    """Whether it may be rounded up."""
    saves: tuple[bool, bool]
    """Whether that saves a move."""
    up: tuple[int, int]

    @property
    def cost(self) -> int:
        overload = max(0, self.up[0] + self.up[1] - self.slack)
        return _OVERLOAD * overload - self.saves[0] * self.up[0] - self.saves[1] * self.up[1]

    def change(self, gain: int | None, lose: int | None) -> _Rounding | None:
        """Rounded up in `gain` and down in `lose`; None: not possible."""
        if gain is not None and (self.up[gain] or not self.fractional[gain]):
            return None
        if lose is not None and not self.up[lose]:
            return None
        first, second = (self.up[role] + (role == gain) - (role == lose) for role in (0, 1))
        return self._replace(up=(first, second))


_Step = tuple[int | None, int | None]
_CYCLES: tuple[tuple[_Step, ...], ...] = (
    ((0, None), (None, 0)),
    ((1, None), (None, 1)),
    ((0, 1), (1, 0)),
    ((1, 0), (0, None), (None, 1)),
    ((0, 1), (1, None), (None, 0)),
)
"""Exchanges that keep both sums; each step (gained, lost) happens at another node. 0: producers, 1: consumers."""
_STEPS = tuple(dict.fromkeys(step for cycle in _CYCLES for step in cycle))


def apportion(
    capacities: Sequence[int], producers: Sequence[int], consumers: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Numbers of producers and consumers of each node, from what there is now.

    >>> apportion([12, 12], [4, 0], [3, 5])
    ([2, 2], [4, 4])
    >>> apportion([12, 6], [3, 3], [9, 0])
    ([4, 2], [6, 3])
    """
    total = sum(capacities)
    if not total:
        return list(producers), list(consumers)
    sums = (sum(producers), sum(consumers))
    lows = [(capacity * sums[0] // total, capacity * sums[1] // total) for capacity in capacities]
    nodes = [
        _Rounding(
            max(0, min(2, capacity - low[0] - low[1])),
            (capacity * sums[0] % total > 0, capacity * sums[1] % total > 0),
            (own[0] > low[0], own[1] > low[1]),
            (0, 0),
        )
        for capacity, low, own in zip(capacities, lows, zip(producers, consumers, strict=True), strict=True)
    ]
    for role in (0, 1):
        extra = sums[role] - sum(low[role] for low in lows)
        able = [at for at, node in enumerate(nodes) if node.fractional[role]]
        # Where it makes no difference, the nodes with more of the other kind: so producers and consumers match.
        for at in sorted(able, key=lambda at: (not nodes[at].saves[role], not nodes[at].up[0]))[:extra]:
            nodes[at] = nodes[at].change(role, None) or nodes[at]
    # This keeps the most clients, so it is left only where it overloads a node.
    if any(sum(node.up) > node.slack for node in nodes):
        nodes = _exchange(nodes)
    return (
        [low[0] + node.up[0] for low, node in zip(lows, nodes, strict=True)],
        [low[1] + node.up[1] for low, node in zip(lows, nodes, strict=True)],
    )


def _exchange(nodes: Sequence[_Rounding]) -> list[_Rounding]:
    """Carry out the exchange that lowers the cost the most, until there is none."""
    alike: dict[_Rounding, list[int]] = defaultdict(list)
    for at, node in enumerate(nodes):
        alike[node].append(at)
    for places in alike.values():
        heapify(places)
    for _ in range(8 * len(nodes)):  # each exchange lowers the cost by one at least, which bounds their number
        best = _find_exchange([node for node, places in alike.items() if places])
        if not best:
            break
        for before, after in best:
            heappush(alike[after], heappop(alike[before]))
    found = list(nodes)
    for node, places in alike.items():
        for at in places:
            found[at] = node
    return found


def _find_exchange(nodes: Sequence[_Rounding]) -> list[tuple[_Rounding, _Rounding]]:
    """The changes of the best exchange; empty: none lowers the cost."""
    cheapest: dict[_Step, tuple[int, _Rounding, _Rounding]] = {}
    for step in _STEPS:
        changes = ((node, node.change(*step)) for node in nodes)
        costs = [(after.cost - before.cost, before, after) for before, after in changes if after is not None]
        if costs:
            cheapest[step] = min(costs)
    cycles = [[cheapest[step] for step in cycle] for cycle in _CYCLES if all(one in cheapest for one in cycle)]
    best = min(cycles, key=lambda cycle: sum(cost for cost, _, _ in cycle), default=[])
    if sum(cost for cost, _, _ in best) >= 0:
        return []
    return [(before, after) for _, before, after in best]


def distance(capacities: Sequence[int], counts: Sequence[int]) -> float:
    """How far the farthest node is from its share, in clients; below 1 nothing is to be gained by moving one.

    >>> distance([12, 12], [3, 2]), distance([12, 12], [5, 0])
    (0.5, 2.5)
    """
    total, clients = sum(capacities), sum(counts)
    if not total:
        return 0.0
    # Divided last: what is a whole number must come out as one.
    gaps = (abs(count * total - capacity * clients) for capacity, count in zip(capacities, counts, strict=True))
    return max(gaps, default=0) / total
