"""How many nodes: R5, R6, growing of algorithm 1, ElectRemovableQueue of algorithm 2, and a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from flyball.cluster.policy.election import Tally, elect
from flyball.cluster.policy.plans import Plan, SessionMove
from flyball.cluster.policy.proposals import Wanted
from flyball.cluster.policy.reasons import Code, Goal, Reason
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Host, Mark, Node, Session, State, Status, compute_load


def prospective_load(state: State) -> float | None:
    """Lc with the nodes that are being added; None while no capacity is known."""
    coming = sum(
        state.capacities[node.name]
        for node in state.nodes.values()
        if node.status is Status.ADDING and node.mark is None
    )
    if state.capacity + coming and not state.knows_capacity:
        return None
    return compute_load(state.clients, state.capacity + coming)


def find_host(rules: Rules, state: State, now_s: float) -> Host | None:
    """The next free host, those with a running broker first; None: there is none, or `max_nodes` is reached."""
    if sum(node.status is not Status.LOST for node in state.nodes.values()) >= rules.max_nodes:
        return None
    free = [host for host in state.hosts.values() if host.retry_s <= now_s]
    return min(free, key=lambda host: (not host.is_ready, host.name), default=None)


def plan_growth(rules: Rules, state: State, now_s: float, reason: Reason) -> Wanted | None:
    """Use a node again that was to be removed, else add one; None: there is neither."""
    kept = [node for node in state.nodes.values() if node.status is Status.UP and node.mark is not None]
    reusable = [node for node in kept if node.mark is not Mark.MAINTENANCE and node.name not in state.drains]
    if reusable:
        node = min(reusable, key=lambda one: (-_clients(state, one.name), one.name))
        return Wanted(Kind.GROW, Goal.NO_OVERLOAD, reason, Plan(unmark=(node.name,)))
    host = find_host(rules, state, now_s)
    return None if host is None else Wanted(Kind.GROW, Goal.NO_OVERLOAD, reason, Plan(add=(host.name,)))


def explain_growth(state: State, load: float) -> Reason:
    return Reason(
        Code.OVERLOADED,
        f"{state.clients} clients, room for {state.capacity}: the load of the cluster is {load:.3g}",
    )


def find_removable(rules: Rules, state: State) -> Node | None:
    """The node that the cluster can do without, with the fewest clients to move: C_i <= Cc − (Nc + Mc), with the
    band of `shrink_below`. None: it needs all of them."""
    if state.moving or any(node.status is Status.ADDING for node in state.nodes.values()):
        return None
    removable = [node for node in state.members if is_dispensable(rules, state, node)]
    return min(removable, key=lambda node: (_clients(state, node.name), node.length or 0, node.name), default=None)


def is_dispensable(rules: Rules, state: State, node: Node) -> bool:
    """Whether the clients fit into the other members, with the band."""
    rest = state.known_capacity - (node.capacity or 0)
    return len(state.members) > rules.min_nodes and rest > 0 and state.clients <= rules.shrink_below * rest


def plan_shrink(rules: Rules, state: State, node: Node, code: Code = Code.UNDERLOADED) -> Wanted:
    """Mark the node for removal and, if clients are not waited for, move them."""
    rest = state.known_capacity - (node.capacity or 0)
    reason = Reason(
        code,
        f"{state.clients} clients fit without {node.name}: the others have room for {rest}, "
        f"a load of {state.clients / rest:.3g}",
    )
    moves = move_away(state, node.name) if rules.drain_at_once else ()
    return Wanted(Kind.SHRINK, Goal.FEW_NODES, reason, Plan(mark=((node.name, Mark.SHRINK),), sessions=moves))


def move_away(
    state: State, name: str, sessions: Iterable[Session] | None = None, also: Iterable[Node] = ()
) -> tuple[SessionMove, ...]:
    """Elect another node for each client of a node, or for these sessions; `also` will be members, too."""
    nodes = sorted(
        {node.name: node for node in (*state.members, *also) if node.name != name}.values(),
        key=lambda node: node.name,
    )
    capacities = dict(state.capacities)
    mean = max(1, round(sum(capacities.values()) / len(capacities))) if capacities else 1
    for node in nodes:
        capacities.setdefault(node.name, mean if node.capacity is None else node.capacity)
    tally = Tally(nodes, capacities, state)
    if sessions is None:
        # Those that are moving to it just now follow when they have arrived.
        sessions = (one for one in state.sessions.values() if one.place == name and one.started_s is None)
    moves: list[SessionMove] = []
    for session in sessions:
        election = elect(tally, session.role, session.zone)
        if election is None:
            break
        tally.add(election.node, session.role)
        moves.append(SessionMove(session.id, session.place, election.node))
    return tuple(moves)


class Size(StrEnum):
    TOO_FEW = "one node too few"
    RIGHT = "right"
    TOO_MANY = "one node too many"
    UNKNOWN = "not known yet"


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    size: Size
    reason: Reason


def judge_size(rules: Rules, state: State) -> SizeVerdict:
    """Whether the cluster has the right number of nodes.

    >>> judge_size(Rules(), State(nodes={name: Node(name, 12) for name in "ab"})).reason.text
    '0 clients fit without a: the others have room for 12, a load of 0'
    """
    load = state.load
    if load is None:
        return SizeVerdict(
            Size.UNKNOWN, Reason(Code.UNKNOWN_CAPACITY, "no capacity is configured, and none is measured yet")
        )
    if load > 1.0:
        return SizeVerdict(Size.TOO_FEW, explain_growth(state, load))
    removable = find_removable(rules, state)
    if removable is not None:
        return SizeVerdict(Size.TOO_MANY, plan_shrink(rules, state, removable).reason)
    if len(state.members) <= rules.min_nodes:
        why = f"and min_nodes is {rules.min_nodes}"
    elif state.moving or any(node.status is Status.ADDING for node in state.nodes.values()):
        why = "and a change is under way"
    else:
        why = f"and without any of the nodes it would exceed {rules.shrink_below:g}"
    text = f"{state.clients} clients, room for {state.capacity}: a load of {load:.3g}, {why}"
    return SizeVerdict(Size.RIGHT, Reason(Code.RIGHT_SIZE, text))


def _clients(state: State, name: str) -> int:
    return state.producers[name] + state.consumers[name]
