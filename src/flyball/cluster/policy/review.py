"""From what the situation asks for to what is done: proposals are made, kept, carried out, withdrawn and closed.

There is at most one pending proposal of each kind. It stays the same as long as it can be carried out as it was
made, so that an operator can approve what he has read; else another one takes its place.
"""

from __future__ import annotations

from dataclasses import replace

from flyball.cluster.policy.balancing import can_balance, measure_imbalance, plan_balance
from flyball.cluster.policy.decisions import (
    AddNode,
    CloseProposal,
    Decision,
    MarkNode,
    MoveMessages,
    MoveSession,
    Propose,
    RemoveNode,
    ReportShortage,
    UnmarkNode,
)
from flyball.cluster.policy.evacuation import is_vacant, plan_evacuation, plan_maintenance
from flyball.cluster.policy.exchange import plan_exchange
from flyball.cluster.policy.plans import forget_move, is_possible, put_in_force
from flyball.cluster.policy.proposals import Proposal, Stage, Wanted, make_proposal
from flyball.cluster.policy.provisioning import (
    explain_growth,
    find_removable,
    is_dispensable,
    plan_growth,
    plan_shrink,
    prospective_load,
)
from flyball.cluster.policy.reasons import Code, Reason
from flyball.cluster.policy.repair import plan_repair
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Mark, State, Status, as_host

_FINISHED = 50
"""Closed proposals that are remembered."""
_REFUSED = 100
"""Rejected plans that are remembered."""


def review(rules: Rules, state: State, now_s: float, *, joined: bool) -> tuple[State, list[Decision]]:
    """Consider every kind of change, then go on with those that are being carried out.

    `joined`: a client was just elected; that is no moment to mark a node, which could be the one.
    """
    decisions: list[Decision] = []
    for kind in Kind:
        state, more = consider(rules, state, now_s, kind, joined=joined)
        decisions += more
    if rules.mode == "on":
        state, more = _release_marked(rules, state, now_s)
        decisions += more
        state, more = _begin_moves(rules, state, now_s)
        decisions += more
    state, more = _close_complete(state)
    return state, decisions + more


def consider(
    rules: Rules, state: State, now_s: float, kind: Kind, *, joining: bool = False, joined: bool = False
) -> tuple[State, list[Decision]]:
    """Propose what the situation asks for, and carry it out if nobody has to approve it."""
    state, wanted, decisions = _want(rules, state, now_s, kind, joining, joined)
    current = _find_pending(state, kind)
    if wanted is None or wanted.plan.is_empty:
        if current is not None and not (joined and is_sound(rules, state, current)):
            state, more = close(state, current, Reason(Code.WITHDRAWN, "nothing asks for it any more"))
            decisions += more
        return state, decisions
    continues = rules.mode == "on" and _continues(wanted)
    acts = (rules.acts(kind) or continues) and state.held.get(kind, now_s) <= now_s
    if current is not None and not continues and is_sound(rules, state, current):
        if acts:
            state, more = start(state, current, now_s)
            decisions += more
        return state, decisions
    if current is not None:
        reason = Reason(Code.REPLACED, f"it does not fit the situation any more; see {kind}-{state.next_id}")
        state, more = close(state, current, reason)
        decisions += more
    if state.refused.get((kind, wanted.plan), now_s) > now_s:
        return state, decisions
    proposal = make_proposal(rules, state, wanted, now_s)
    state = replace(state, next_id=state.next_id + 1, proposals={**state.proposals, proposal.id: proposal})
    decisions.append(Propose(proposal))
    if acts:
        state, more = start(state, proposal, now_s)
        decisions += more
    elif rules.mode == "shadow" and kind in rules.auto:
        state, more = close(state, proposal, Reason(Code.SHADOW, "the mode is shadow: it is not carried out"))
        state = refuse(state, proposal, now_s + rules.expiry_s)
        decisions += more
    return state, decisions


def is_sound(rules: Rules, state: State, proposal: Proposal) -> bool:
    """Whether the proposal can be carried out as it was made, and still does what it is for."""
    plan = proposal.plan
    if not is_possible(state, plan):
        return False
    if proposal.kind is Kind.SHRINK:
        return all(is_dispensable(rules, state, state.nodes[name]) for name, _ in plan.mark)
    if proposal.kind is Kind.BALANCE:
        before = measure_imbalance(state)
        after = measure_imbalance(put_in_force(state, plan, proposal.id, proposal.created_s))
        return after.clients <= before.clients and len(after.overloaded) <= len(before.overloaded)
    return True


def start(state: State, proposal: Proposal, now_s: float) -> tuple[State, list[Decision]]:
    """Begin to carry a proposal out; its sessions follow as far as so many may move at once."""
    plan, reason = proposal.plan, proposal.reason
    state = put_in_force(state, plan, proposal.id, now_s)
    state = replace(state, proposals={**state.proposals, proposal.id: replace(proposal, stage=Stage.RUNNING)})
    decisions: list[Decision] = [AddNode(name, reason) for name in plan.add]
    decisions += [UnmarkNode(name, reason) for name in plan.unmark]
    decisions += [MarkNode(name, mark, reason) for name, mark in plan.mark]
    decisions += [MoveMessages(move.source, move.target, move.count, reason) for move in plan.messages]
    return state, decisions


def close(state: State, proposal: Proposal, outcome: Reason) -> tuple[State, list[Decision]]:
    left = {id: other for id, other in state.proposals.items() if id != proposal.id}
    ended = replace(proposal, stage=Stage.FINISHED, outcome=outcome)
    state = replace(state, proposals=left, finished=(*state.finished, ended)[-_FINISHED:])
    return state, [CloseProposal(proposal.id, outcome)]


def refuse(state: State, proposal: Proposal, until_s: float) -> State:
    """Do not propose the same again for a while."""
    refused = {**state.refused, proposal.key: until_s}
    while len(refused) > _REFUSED:
        del refused[min(refused, key=lambda key: refused[key])]
    return replace(state, refused=refused)


def _continues(wanted: Wanted) -> bool:
    """Whether it is the rest of a change that was approved: what is still on a node that was marked by it."""
    return wanted.kind in (Kind.SHRINK, Kind.DRAIN) and not (wanted.plan.mark or wanted.plan.add)


def _find_pending(state: State, kind: Kind) -> Proposal | None:
    pending = (one for one in state.proposals.values() if one.kind is kind and one.stage is Stage.PENDING)
    return next(pending, None)


def _want(
    rules: Rules, state: State, now_s: float, kind: Kind, joining: bool, joined: bool
) -> tuple[State, Wanted | None, list[Decision]]:
    match kind:
        case Kind.NODE_LOST:
            return state, plan_repair(rules, state, now_s), []
        case Kind.GROW:
            return _want_growth(rules, state, now_s, joining)
        case Kind.DRAIN:
            found = plan_evacuation(rules, state, now_s, kind)
            if found is None and not joined:
                found = plan_maintenance(rules, state, now_s)
            return state, found, []
        case Kind.NODE_BACK:
            return state, plan_evacuation(rules, state, now_s, kind), []
        case Kind.SHRINK:
            return _want_shrink(rules, state, now_s, joined)
        case Kind.BALANCE:
            return _want_balance(rules, state, now_s)
        case Kind.EXCHANGE:
            return state, plan_exchange(rules, state), []


def _want_growth(
    rules: Rules, state: State, now_s: float, joining: bool
) -> tuple[State, Wanted | None, list[Decision]]:
    load = prospective_load(state)
    since = _since(state.overloaded_since_s, load is not None and load > 1.0, now_s)
    state = replace(state, overloaded_since_s=since)
    if load is None or load < rules.grow_at:
        return replace(state, is_short=False), None, []
    is_asked = joining or _find_pending(state, Kind.GROW) is not None
    if not is_asked and (since is None or now_s - since < rules.grow_after_s):
        return state, None, []
    reason = explain_growth(state, load)
    wanted = plan_growth(rules, state, now_s, reason)
    if wanted is not None:
        return replace(state, is_short=False), wanted, []
    shortage = Reason(Code.NO_FREE_HOST, f"{reason.text}, and no host is free for another node")
    decisions: list[Decision] = [] if state.is_short else [ReportShortage(shortage)]
    return replace(state, is_short=True), None, decisions


def _want_shrink(
    rules: Rules, state: State, now_s: float, joined: bool
) -> tuple[State, Wanted | None, list[Decision]]:
    left = plan_evacuation(rules, state, now_s, Kind.SHRINK)
    if left is not None:
        return state, left, []
    removable = find_removable(rules, state)
    since = _since(state.underloaded_since_s, removable is not None, now_s)
    state = replace(state, underloaded_since_s=since)
    if removable is None or since is None or joined or now_s - since < rules.shrink_after_s:
        return state, None, []
    return state, plan_shrink(rules, state, removable), []


def _want_balance(rules: Rules, state: State, now_s: float) -> tuple[State, Wanted | None, list[Decision]]:
    if not can_balance(state):
        return state, None, []
    imbalance = measure_imbalance(state)
    if not imbalance.overloaded and any(node.status is Status.ADDING for node in state.nodes.values()):
        return state, None, []  # sessions will move to the new node
    since = _since(state.unbalanced_since_s, not imbalance.is_tolerable, now_s)
    state = replace(state, unbalanced_since_s=since)
    if since is None or now_s - since < rules.balance_after_s:
        return state, None, []
    if any(session.retry_s > now_s for session in state.sessions.values()):
        return state, None, []
    return state, plan_balance(state, imbalance), []


def _since(since_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _release_marked(rules: Rules, state: State, now_s: float) -> tuple[State, list[Decision]]:
    """Remove marked nodes on which nothing is left, except those that the cluster needs by now."""
    decisions: list[Decision] = []
    for name, node in sorted(state.nodes.items()):
        removable = node.mark in (Mark.SHRINK, Mark.RETURNED) and node.status is Status.UP
        if not removable or not is_vacant(state, node):
            continue
        load = prospective_load(state)
        limit = 1.0 if node.mark is Mark.SHRINK else rules.shrink_below
        nodes = dict(state.nodes)
        if load is None or load > limit or len(state.members) < rules.min_nodes:
            nodes[name] = replace(node, mark=None)
            state = replace(state, nodes=nodes)
            decisions.append(UnmarkNode(name, Reason(Code.NEEDED, f"{name} is empty, and the cluster needs it")))
            continue
        since_s = now_s if node.empty_since_s is None else node.empty_since_s
        if node.is_used or now_s - since_s < rules.release_after_s:
            continue  # what is on its way may still arrive
        del nodes[name]
        state = replace(state, nodes=nodes, hosts={**state.hosts, name: as_host(node)})
        decisions.append(RemoveNode(name, Reason(Code.EMPTY, f"{name} has neither clients nor messages")))
    return state, decisions


def _begin_moves(rules: Rules, state: State, now_s: float) -> tuple[State, list[Decision]]:
    """Sessions of lost nodes at once, those of healthy ones a few at a time."""
    if not state.moving:
        return state, []
    sessions = dict(state.sessions)
    decisions: list[Decision] = []
    served = [session for session in state.moving if state.is_up(session.node)]
    under_way = sum(session.started_s is not None for session in served)
    for session in state.moving:
        if session.started_s is not None or session.target is None:
            continue
        target = state.nodes.get(session.target)
        proposal = state.proposals.get(session.change or "")
        if target is None or not target.is_member or proposal is None:
            sessions[session.id] = forget_move(session)
            continue
        if state.is_up(session.node):
            if under_way >= rules.moves_at_once:
                continue
            under_way += 1
        sessions[session.id] = replace(session, started_s=now_s)
        decisions.append(MoveSession(session.id, session.node, session.target, proposal.reason))
    return replace(state, sessions=sessions), decisions


def _close_complete(state: State) -> tuple[State, list[Decision]]:
    running = [one for one in state.proposals.values() if one.stage is Stage.RUNNING]
    if not running:
        return state, []
    busy = {session.change for session in state.moving}
    busy |= {transfer.change for transfer in state.transfers.values()}
    busy |= {node.change for node in state.nodes.values() if node.status is Status.ADDING}
    decisions: list[Decision] = []
    for proposal in running:
        if proposal.id not in busy:
            state, more = close(state, proposal, Reason(Code.CARRIED_OUT, "everything is done"))
            decisions += more
    return state, decisions
