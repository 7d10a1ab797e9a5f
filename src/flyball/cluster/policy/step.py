"""The decisions of a clustered queue: `step(rules, state, event)` → the new state and what is to be done. Pure.

Algorithm 1 of the document is `_join`, algorithm 2 is `_leave` with `review`. What is observed changes the state;
what is decided counts as soon as it is decided, so that the same event twice asks for nothing twice. Events that
name an unknown node, session or proposal change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from flyball.cluster.policy.decisions import Answer, Decision, Elect, Refuse, UnmarkNode
from flyball.cluster.policy.election import elect, tally_members
from flyball.cluster.policy.events import (
    AddFailed,
    Approve,
    Drain,
    Event,
    Grow,
    Join,
    Leave,
    MessagesMoved,
    MoveFailed,
    NodeAdded,
    NodeBack,
    NodeLost,
    Reading,
    Reject,
    Resume,
    SessionMoved,
    Shrink,
    Stop,
    Tick,
)
from flyball.cluster.policy.orders import grow, shrink
from flyball.cluster.policy.plans import forget_move
from flyball.cluster.policy.proposals import Stage
from flyball.cluster.policy.reasons import Code, Reason
from flyball.cluster.policy.review import close, consider, is_sound, refuse, review, start
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Mark, Node, Session, State, Status, as_host
from flyball.errors import InvalidValue


def step(rules: Rules, state: State, event: Event) -> tuple[State, tuple[Decision, ...]]:
    """Take in what happened and say what to do.

    >>> state = State(nodes={"a": Node("a", 12)})
    >>> state, decisions = step(Rules(), state, Join(0.0, "s1", "producer"))
    >>> decisions[0].node, decisions[0].reason.text
    ('a', 'a has 0 of 0 producers; with this one its share is 1')
    """
    if not math.isfinite(event.now_s):
        raise InvalidValue(f"now_s of an event must be a finite number of seconds, got {event.now_s!r}")
    state, decisions = _apply(rules, state, event)
    state, more = review(rules, state, event.now_s, joined=isinstance(event, Join))
    return state, (*decisions, *more)


def _apply(rules: Rules, state: State, event: Event) -> tuple[State, list[Decision]]:
    match event:
        case Join():
            return _join(rules, state, event)
        case Leave(session=id):
            return _leave(state, id), []
        case Tick():
            return _tick(rules, state, event)
        case NodeLost(node=name):
            return _lose(rules, state, name, event.now_s), []
        case NodeBack(node=name):
            return _return(state, name), []
        case NodeAdded(node=name, capacity=capacity):
            return _add(state, name, capacity), []
        case AddFailed(node=name):
            return _fail_add(rules, state, name, event.now_s), []
        case SessionMoved(session=id, node=name):
            return _settle(state, id, name), []
        case MoveFailed(session=id, node=name):
            return _fail_move(rules, state, id, name, event.now_s), []
        case MessagesMoved():
            return _receive(state, event), []
        case Drain(node=name):
            return (replace(state, drains=state.drains | {name}) if name in state.nodes else state), []
        case Resume(node=name):
            return _resume(state, name)
        case Approve(proposal=id):
            return _approve(rules, state, id, event.now_s)
        case Reject(proposal=id):
            return _reject(rules, state, id, event.now_s)
        case Stop(proposal=id):
            return _stop(rules, state, id, event.now_s)
        case Grow():
            return grow(rules, state, event.now_s)
        case Shrink(node=name):
            return shrink(rules, state, name, event.now_s)


def _join(rules: Rules, state: State, event: Join) -> tuple[State, list[Decision]]:
    known = state.sessions.get(event.session)
    if known is not None:
        place = state.nodes.get(known.place)
        if known.role == event.role and place is not None and place.is_member:
            settled = replace(forget_move(known), node=place.name, zone=event.zone)
            reason = Reason(Code.ALREADY_CONNECTED, f"the session has its place on {place.name}")
            state = replace(state, sessions={**state.sessions, known.id: settled})
            return state, [Elect(known.id, event.role, place.name, reason)]
        state = _leave(state, known.id)
    # Lc >= 1: an additional queue is required.
    state, decisions = consider(rules, state, event.now_s, Kind.GROW, joining=True)
    state, more = consider(rules, state, event.now_s, Kind.DRAIN)
    decisions += more
    election = elect(tally_members(state), event.role, event.zone)
    if election is None:
        reason = Reason(Code.NO_NODE, "there is no node that could serve the session")
        return state, [*decisions, Refuse(event.session, reason)]
    reason = election.reason
    if reason.code is Code.LEAST_LOADED and state.is_short:
        reason = Reason(Code.NO_FREE_HOST, f"no host is free for another node, and {reason.text}")
    session = Session(event.session, event.role, election.node, event.zone)
    state = replace(state, sessions={**state.sessions, session.id: session})
    return state, [*decisions, Elect(session.id, session.role, election.node, reason)]


def _leave(state: State, id: str) -> State:
    if id not in state.sessions:
        return state
    return replace(state, sessions={key: one for key, one in state.sessions.items() if key != id})


def _tick(rules: Rules, state: State, event: Tick) -> tuple[State, list[Decision]]:
    nodes = dict(state.nodes)
    for name, reading in event.readings.items():
        if name in nodes:
            nodes[name] = _read(rules, nodes[name], reading, event.now_s)
    now_s = event.now_s
    sessions: Mapping[str, Session] = state.sessions
    late = [
        session
        for session in state.moving
        if session.started_s is not None and now_s - session.started_s > rules.move_timeout_s
    ]
    if late:
        retry_s = now_s + rules.retry_s
        sessions = {**sessions, **{one.id: replace(forget_move(one), retry_s=retry_s) for one in late}}
    transfers = {
        pair: transfer
        for pair, transfer in state.transfers.items()
        if now_s - transfer.started_s <= rules.exchange_timeout_s
    }
    state = replace(
        state,
        nodes=nodes,
        sessions=sessions,
        transfers=transfers,
        refused={key: until_s for key, until_s in state.refused.items() if until_s > now_s},
        held={kind: until_s for kind, until_s in state.held.items() if until_s > now_s},
    )
    for node in nodes.values():
        if node.status is Status.ADDING and now_s - node.asked_s > rules.add_timeout_s:
            state = _fail_add(rules, state, node.name, now_s)
    decisions: list[Decision] = []
    for proposal in list(state.proposals.values()):
        if proposal.stage is Stage.PENDING and now_s >= proposal.expires_s:
            state, more = close(
                state, proposal, Reason(Code.EXPIRED, f"nobody approved it in {rules.expiry_s:g} s")
            )
            decisions += more
    return state, decisions


def _read(rules: Rules, node: Node, reading: Reading, now_s: float) -> Node:
    capacity = node.capacity
    measured = reading.capacity
    if measured is not None and not node.is_configured:
        far = capacity is None or abs(measured - capacity) > rules.capacity_band * capacity
        capacity = measured if far else capacity
    return replace(
        node,
        capacity=capacity,
        length=node.length if reading.length is None else reading.length,
        waiting=reading.waiting,
        rate_per_s=reading.rate_per_s,
        is_saturated=reading.is_saturated,
        is_used=reading.is_used,
        empty_since_s=(node.empty_since_s if node.empty_since_s is not None else now_s)
        if reading.length == 0 and not reading.is_used
        else None,
    )


def _lose(rules: Rules, state: State, name: str, now_s: float) -> State:
    node = state.nodes.get(name)
    if node is None or node.status is Status.LOST:
        return state
    if node.status is Status.ADDING:
        return _fail_add(rules, state, name, now_s)
    # A node that was to go needs no replacement.
    lost = replace(node, status=Status.LOST, mark=None, is_replaced=node.mark is not None, waiting=0)
    sessions = {
        id: forget_move(session) if session.target == name else session for id, session in state.sessions.items()
    }
    transfers = {pair: transfer for pair, transfer in state.transfers.items() if name not in pair}
    return replace(state, nodes={**state.nodes, name: lost}, sessions=sessions, transfers=transfers)


def _return(state: State, name: str) -> State:
    node = state.nodes.get(name)
    if node is None or node.status is not Status.LOST:
        return state
    back = replace(node, status=Status.UP, mark=Mark.RETURNED, length=None, is_replaced=False, empty_since_s=None)
    return replace(state, nodes={**state.nodes, name: back})


def _add(state: State, name: str, capacity: int | None) -> State:
    node = state.nodes.get(name)
    if node is None or node.status is not Status.ADDING:
        return state
    known = node.capacity if node.is_configured or capacity is None else capacity
    return replace(state, nodes={**state.nodes, name: replace(node, status=Status.UP, capacity=known)})


def _fail_add(rules: Rules, state: State, name: str, now_s: float) -> State:
    node = state.nodes.get(name)
    if node is None or node.status is not Status.ADDING:
        return state
    nodes = {
        other.name: replace(other, is_replaced=False) if other.status is Status.LOST else other
        for other in state.nodes.values()
        if other.name != name
    }
    host = as_host(node, now_s + rules.retry_s)
    return replace(state, nodes=nodes, hosts={**state.hosts, name: host})


def _settle(state: State, id: str, name: str) -> State:
    session = state.sessions.get(id)
    if session is None or name not in state.nodes:
        return state
    if session.target in (None, name):
        session = forget_move(session)  # else the report of an earlier move: the present one goes on
    return replace(state, sessions={**state.sessions, id: replace(session, node=name)})


def _fail_move(rules: Rules, state: State, id: str, name: str, now_s: float) -> State:
    session = state.sessions.get(id)
    if session is None or session.target != name:
        return state
    failed = replace(forget_move(session), retry_s=now_s + rules.retry_s)
    return replace(state, sessions={**state.sessions, id: failed})


def _receive(state: State, event: MessagesMoved) -> State:
    pair = (event.source, event.target)
    if pair not in state.transfers:
        return state
    nodes = dict(state.nodes)
    for name, change in ((event.source, -event.count), (event.target, event.count)):
        if name in nodes and nodes[name].length is not None:
            nodes[name] = replace(nodes[name], length=max(0, (nodes[name].length or 0) + change))
    transfers = {key: transfer for key, transfer in state.transfers.items() if key != pair}
    return replace(state, nodes=nodes, transfers=transfers)


def _resume(state: State, name: str) -> tuple[State, list[Decision]]:
    state = replace(state, drains=state.drains - {name})
    node = state.nodes.get(name)
    if node is None or node.mark is not Mark.MAINTENANCE:
        return state, []
    state = replace(state, nodes={**state.nodes, name: replace(node, mark=None)})
    return state, [UnmarkNode(name, Reason(Code.MAINTENANCE, f"the maintenance of {name} is over"))]


def _approve(rules: Rules, state: State, id: str, now_s: float) -> tuple[State, list[Decision]]:
    proposal = state.proposals.get(id)
    if proposal is None:
        return state, [Answer(id, _explain_absence(state, id))]
    if proposal.stage is Stage.RUNNING:
        return state, [Answer(id, Reason(Code.APPROVED, f"{id} is being carried out already"))]
    if rules.mode != "on":
        text = f"the mode is {rules.mode}: nothing is carried out; set the mode to on"
        return state, [Answer(id, Reason(Code.MODE, text))]
    if now_s >= proposal.expires_s:
        return state, [Answer(id, Reason(Code.EXPIRED, f"{id} has expired"))]
    if not is_sound(rules, state, proposal):
        text = f"{id} does not fit the situation any more"
        return state, [Answer(id, Reason(Code.REPLACED, text))]
    return start(state, replace(proposal, is_approved=True), now_s)


def _reject(rules: Rules, state: State, id: str, now_s: float) -> tuple[State, list[Decision]]:
    proposal = state.proposals.get(id)
    if proposal is None:
        return state, [Answer(id, _explain_absence(state, id))]
    if proposal.stage is Stage.RUNNING:
        return state, [Answer(id, Reason(Code.APPROVED, f"{id} is being carried out; stop it instead"))]
    state = refuse(state, proposal, now_s + rules.expiry_s)
    return close(state, proposal, Reason(Code.REJECTED, "an operator rejected it"))


def _stop(rules: Rules, state: State, id: str, now_s: float) -> tuple[State, list[Decision]]:
    """Moves that began end; its kind of change needs approval for a while, or it would begin again at once."""
    proposal = state.proposals.get(id)
    if proposal is None:
        return state, [Answer(id, _explain_absence(state, id))]
    if proposal.stage is Stage.PENDING:
        return _reject(rules, state, id, now_s)
    sessions = {
        key: forget_move(session) if session.change == id and session.started_s is None else session
        for key, session in state.sessions.items()
    }
    state = replace(state, sessions=sessions, held={**state.held, proposal.kind: now_s + rules.expiry_s})
    return close(state, proposal, Reason(Code.STOPPED, "an operator stopped it"))


def _explain_absence(state: State, id: str) -> Reason:
    for proposal in reversed(state.finished):
        if proposal.id == id and proposal.outcome is not None:
            return Reason(proposal.outcome.code, f"{id} is over: {proposal.outcome.text}")
    return Reason(Code.UNKNOWN_PROPOSAL, f"there is no proposal {id}")
