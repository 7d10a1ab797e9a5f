"""After a node was lost: other nodes for its clients, and a replacement where the cluster needs one."""

from __future__ import annotations

from flyball.cluster.policy.plans import Plan
from flyball.cluster.policy.proposals import Wanted
from flyball.cluster.policy.provisioning import find_host, move_away, prospective_load
from flyball.cluster.policy.reasons import Code, Goal, Reason
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Node, Session, State, Status


def find_homeless(state: State, now_s: float) -> tuple[Session, ...]:
    """Sessions whose node is lost or gone, and that have no other yet."""
    return tuple(
        session
        for session in state.sessions.values()
        if session.target is None and session.retry_s <= now_s and not state.is_up(session.node)
    )


def needs_replacement(rules: Rules, state: State) -> bool:
    """Whether the cluster would not do without the lost node: else its replacement would soon be removed again."""
    load = prospective_load(state)
    nodes = sum(node.is_member or node.status is Status.ADDING for node in state.nodes.values())
    return nodes < rules.min_nodes or load is None or load > rules.shrink_below


def plan_repair(rules: Rules, state: State, now_s: float) -> Wanted | None:
    """None: nothing to repair, or nothing to repair it with."""
    lost = [node for node in state.nodes.values() if node.status is Status.LOST and not node.is_replaced]
    homeless = find_homeless(state, now_s)
    host = find_host(rules, state, now_s) if lost and needs_replacement(rules, state) else None
    also = (Node(host.name, host.capacity, zone=host.zone),) if host is not None and host.is_ready else ()
    moves = move_away(state, "", homeless, also)
    plan = Plan(
        add=(host.name,) if host is not None else (),
        sessions=moves,
        replaced=(min(node.name for node in lost),) if host is not None else (),
    )
    if plan.is_empty:
        return None
    names = sorted({node.name for node in lost} | {session.node for session in homeless})
    replacement = f"; {host.name} replaces it" if host is not None else ""
    text = f"{', '.join(names)} is lost: {len(moves)} clients get another node{replacement}"
    return Wanted(Kind.NODE_LOST, Goal.NO_LOSS, Reason(Code.NODE_LOST, text), plan)
