"""Which node gets a client: rules R1 to R4 and ElectQueue of the document, for nodes of any capacity.

Ranked: 1. a node that is not full, if there is one (R3, R4); 2. the node that lacks the most clients of this kind,
measured against its share of the capacity (1/k − x_i or 1/k − y_i for equal nodes); 3. the node with the most
clients of the other kind, so that what is produced on a node is consumed there (R1, R2); 4. the client's zone;
5. the least loaded; 6. the first by name. Where every node is full, the least loaded one serves the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flyball.cluster.policy.reasons import Code, Reason
from flyball.cluster.policy.state import Node, Role, State


@dataclass(frozen=True, slots=True)
class Election:
    node: str
    reason: Reason


class Tally:
    """Counts of clients at the nodes that may get more; elections of several clients in turn add to it."""

    def __init__(self, nodes: Iterable[Node], capacities: Mapping[str, int], state: State) -> None:
        self.nodes = tuple(nodes)
        self.capacities = capacities
        names = [node.name for node in self.nodes]
        self.counts: dict[Role, dict[str, int]] = {
            "producer": {name: state.producers[name] for name in names},
            "consumer": {name: state.consumers[name] for name in names},
        }
        self.totals: dict[Role, int] = {role: sum(counts.values()) for role, counts in self.counts.items()}
        self.capacity = sum(capacities[name] for name in names)

    def add(self, node: str, role: Role) -> None:
        self.counts[role][node] += 1
        self.totals[role] += 1

    def has_room(self, name: str) -> bool:
        return self.counts["producer"][name] + self.counts["consumer"][name] < self.capacities[name]


def tally_members(state: State) -> Tally:
    """Of the members; those that are to be drained only where there is no other."""
    staying = [node for node in state.members if node.name not in state.drains]
    return Tally(staying or state.members, state.capacities, state)


def elect(tally: Tally, role: Role, zone: str = "") -> Election | None:
    """The node for one more client; None: there is no node.

    >>> from flyball.cluster.policy.state import Session
    >>> state = State(
    ...     nodes={name: Node(name, 12) for name in "ab"},
    ...     sessions={"1": Session("1", "producer", "a"), "2": Session("2", "consumer", "a")},
    ... )
    >>> elect(tally_members(state), "producer").node
    'b'
    """
    own, other = tally.counts[role], tally.counts["consumer" if role == "producer" else "producer"]
    nodes = [node for node in tally.nodes if tally.has_room(node.name)]
    if not nodes:
        return _elect_least_loaded(tally)
    total, capacity = tally.totals[role] + 1, tally.capacity

    def rank(node: Node) -> tuple[float, ...] | tuple[object, ...]:
        name = node.name
        share = tally.capacities[name]
        lack = share * total - own[name] * capacity
        return -lack, -other[name] / share, node.zone != zone, (own[name] + other[name]) / share, name

    best = min(nodes, key=rank)
    count = own[best.name]
    fair = tally.capacities[best.name] * total / capacity
    return Election(
        best.name,
        Reason(
            Code.FARTHEST_FROM_SHARE,
            f"{best.name} has {count} of {total - 1} {role}s; with this one its share is {fair:.3g}",
        ),
    )


def _elect_least_loaded(tally: Tally) -> Election | None:
    def load(node: Node) -> float:
        clients = tally.counts["producer"][node.name] + tally.counts["consumer"][node.name]
        return (clients + 1) / tally.capacities[node.name]

    if not tally.nodes:
        return None
    best = min(tally.nodes, key=lambda node: (load(node), node.name))
    return Election(
        best.name,
        Reason(Code.LEAST_LOADED, f"every node is full; {best.name} is the least loaded, now {load(best):.3g}"),
    )
