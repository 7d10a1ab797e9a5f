"""Emptying nodes that are marked: for maintenance, for removal, or because they came back.

Messages move last, when no client is left, so that nothing arrives behind them.
"""

from __future__ import annotations

from flyball.cluster.policy.exchange import spread
from flyball.cluster.policy.plans import Plan
from flyball.cluster.policy.proposals import Wanted
from flyball.cluster.policy.provisioning import find_host, move_away
from flyball.cluster.policy.reasons import Code, Goal, Reason
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Mark, Node, State, Status

_KINDS = {Mark.SHRINK: Kind.SHRINK, Mark.MAINTENANCE: Kind.DRAIN, Mark.RETURNED: Kind.NODE_BACK}
_GOALS = {Mark.SHRINK: Goal.FEW_NODES, Mark.MAINTENANCE: Goal.NO_LOSS, Mark.RETURNED: Goal.NO_LOSS}
_CODES = {
    Mark.SHRINK: Code.UNDERLOADED,
    Mark.MAINTENANCE: Code.MAINTENANCE,
    Mark.RETURNED: Code.NODE_BACK,
}
_CAUSES = {
    Mark.SHRINK: "is marked for removal",
    Mark.MAINTENANCE: "is to be free for maintenance",
    Mark.RETURNED: "was lost and came back",
}


def plan_maintenance(rules: Rules, state: State, now_s: float) -> Wanted | None:
    """Mark the next node that an operator wants emptied. The last node is replaced first."""
    wanted = [node for node in state.members if node.name in state.drains]
    if not wanted:
        return None
    node = wanted[0]
    reason = Reason(Code.MAINTENANCE, f"{node.name} is to be free for maintenance")
    if len(state.members) > 1:
        plan = Plan(mark=((node.name, Mark.MAINTENANCE),), sessions=move_away(state, node.name))
        return Wanted(Kind.DRAIN, Goal.NO_LOSS, reason, plan)
    if any(other.status is Status.ADDING for other in state.nodes.values()):
        return None
    host = find_host(rules, state, now_s)
    return None if host is None else Wanted(Kind.DRAIN, Goal.NO_LOSS, reason, Plan(add=(host.name,)))


def plan_evacuation(rules: Rules, state: State, now_s: float, kind: Kind) -> Wanted | None:
    """Move what is left on nodes with a mark of this kind: clients first, messages when there are none."""
    for node in sorted(state.nodes.values(), key=lambda one: one.name):
        if node.status is not Status.UP or node.mark is None or _KINDS[node.mark] is not kind:
            continue
        plan = _empty(rules, state, node, now_s)
        if not plan.is_empty:
            what = f"{len(plan.sessions)} clients" if plan.sessions else f"{plan.message_count} messages"
            reason = Reason(_CODES[node.mark], f"{node.name} {_CAUSES[node.mark]}: {what} move to other nodes")
            return Wanted(kind, _GOALS[node.mark], reason, plan)
    return None


def is_vacant(state: State, node: Node) -> bool:
    """Whether neither a client, nor a message, nor a transfer is left."""
    return (
        node.length == 0
        and not _has_clients(state, node)
        and not any(node.name in pair for pair in state.transfers)
    )


def _empty(rules: Rules, state: State, node: Node, now_s: float) -> Plan:
    left = [
        session
        for session in state.sessions.values()
        if session.node == node.name and session.target is None and session.retry_s <= now_s
    ]
    if left and (rules.drain_at_once or node.mark is not Mark.SHRINK):
        return Plan(sessions=move_away(state, node.name, left))
    if node.length and not _has_clients(state, node) and not any(node.name in pair for pair in state.transfers):
        return Plan(messages=spread(state, node.name, node.length, limit=None))
    return Plan()


def _has_clients(state: State, node: Node) -> bool:
    return any(node.name in (session.node, session.target) for session in state.sessions.values())
