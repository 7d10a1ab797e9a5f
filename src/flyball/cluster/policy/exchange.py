"""Messages between queues: one that is too long hands its surplus over, an empty one with waiting consumers asks.

The load factor of a queue is its length for each client it can serve, l_i / C_i. A surplus raises the queues of
the least load factor to one level, up to the allowed length. A queue that takes part in a transfer takes part in
no transfer in the opposite direction, so that messages do not go round in circles. A node that is saturated gets
nothing: each message that moves costs it as much as one that it serves.
"""

from __future__ import annotations

import math

from flyball.cluster.policy.plans import MessageMove, Plan
from flyball.cluster.policy.proposals import Wanted
from flyball.cluster.policy.reasons import Code, Goal, Reason
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import State


def plan_exchange(rules: Rules, state: State) -> Wanted | None:
    """Starving queues first: their consumers do nothing meanwhile."""
    return _plan_pull(rules, state) or _plan_surplus(rules, state)


def spread(state: State, source: str, count: int, limit: int | None) -> tuple[MessageMove, ...]:
    """Share messages among the other members, the least load factor first; no queue is raised above `limit`.

    >>> from flyball.cluster.policy.state import Node
    >>> nodes = {"a": Node("a", 12, length=900), "b": Node("b", 12, length=100), "c": Node("c", 6, length=0)}
    >>> [(move.target, move.count) for move in spread(State(nodes=nodes), "a", 200, None)]
    [('b', 100), ('c', 100)]
    """
    levels: dict[str, tuple[int, int]] = {}  # length and capacity
    for node in state.members:
        if node.name == source or node.length is None or (source, node.name) in state.transfers:
            continue
        if any(pair[0] == node.name for pair in state.transfers):
            continue
        coming = sum(transfer.count for pair, transfer in state.transfers.items() if pair[1] == node.name)
        length = node.length + coming
        if limit is None or (length < limit and not node.is_saturated):
            levels[node.name] = (length, state.capacities[node.name])
    if not levels:
        return ()
    if limit is not None:
        count = min(count, sum(limit - length for length, _ in levels.values()))
    given = dict.fromkeys(levels, 0)
    open_names = sorted(levels, key=lambda name: (levels[name][0] / levels[name][1], name))
    left = count
    # Raise the lowest to the level of the next, all of them to the next, …; each round fills a queue or ends.
    for _ in range(2 * len(levels)):
        if left <= 0 or not open_names:
            break
        level = _water_level(levels, given, open_names, left)
        for name in list(open_names):
            length, capacity = levels[name]
            top = length + left + given[name] if limit is None else limit
            want = max(0, min(math.floor(level * capacity + 1e-9), top) - length - given[name])
            want = min(want, left)
            given[name] += want
            left -= want
            if limit is not None and length + given[name] >= limit:
                open_names.remove(name)
        if 0 < left <= len(open_names):
            for name in open_names[:left]:
                given[name] += 1
            left = 0
    return tuple(MessageMove(source, name, amount) for name, amount in sorted(given.items()) if amount > 0)


def _water_level(
    levels: dict[str, tuple[int, int]], given: dict[str, int], names: list[str], amount: int
) -> float:
    """The load factor to which `amount` raises the lowest of these queues."""
    heights = sorted(((levels[name][0] + given[name]) / levels[name][1], levels[name][1]) for name in names)
    volume, width = 0.0, 0
    for at, (height, capacity) in enumerate(heights):
        volume += height * capacity
        width += capacity
        level = (volume + amount) / width
        if at + 1 == len(heights) or level <= heights[at + 1][0]:
            return level
    return 0.0


def _plan_surplus(rules: Rules, state: State) -> Wanted | None:
    """The longest queue above the allowed length first."""
    for node in sorted(state.members, key=lambda one: (-(one.length or 0), one.name)):
        surplus = (node.length or 0) - rules.allowed_length
        if surplus < rules.least_exchange:
            break
        if any(node.name in pair for pair in state.transfers):
            continue
        moves = spread(state, node.name, surplus, rules.allowed_length)
        if sum(move.count for move in moves) >= rules.least_exchange:
            text = f"{node.name} has {node.length} messages, {rules.allowed_length} are allowed"
            return Wanted(Kind.EXCHANGE, Goal.BALANCE, Reason(Code.SURPLUS, text), Plan(messages=moves))
    return None


def _plan_pull(rules: Rules, state: State) -> Wanted | None:
    """An empty queue with waiting consumers gets what it asks for: up to half of the longest queue, or all of it
    if that has no consumers."""
    for node in state.members:
        if node.length != 0 or not node.waiting or node.is_saturated:
            continue
        if any(node.name in pair for pair in state.transfers):
            continue
        sources = [
            other
            for other in state.members
            if other.name != node.name and not any(other.name in pair for pair in state.transfers)
        ]
        source = max(sources, key=lambda other: (other.length or 0, other.name), default=None)
        if source is None:
            continue
        wanted, length = rules.pull * node.waiting, source.length or 0
        if state.consumers[source.name]:
            count, least = min(wanted, length // 2), min(rules.least_exchange, wanted)
        else:
            count, least = min(wanted, length), 1  # nobody would ever read the rest there
        if count >= least:
            text = (
                f"{node.waiting} consumers wait at {node.name}, which is empty; {source.name} has {source.length}"
            )
            move = MessageMove(source.name, node.name, count)
            return Wanted(Kind.EXCHANGE, Goal.BALANCE, Reason(Code.STARVING, text), Plan(messages=(move,)))
    return None
