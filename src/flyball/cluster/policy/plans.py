"""A plan: what one change does to nodes, sessions and messages; and the state with it in force."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball.cluster.policy.state import Mark, Node, Session, State, Status, Transfer


@dataclass(frozen=True, slots=True)
class SessionMove:
    session: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class MessageMove:
    source: str
    target: str
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    add: tuple[str, ...] = ()
    mark: tuple[tuple[str, Mark], ...] = ()
    unmark: tuple[str, ...] = ()
    sessions: tuple[SessionMove, ...] = ()
    messages: tuple[MessageMove, ...] = ()
    replaced: tuple[str, ...] = ()
    """Lost nodes that need no other replacement from now on."""

    @property
    def is_empty(self) -> bool:
        return not (self.add or self.mark or self.unmark or self.sessions or self.messages)

    @property
    def message_count(self) -> int:
        return sum(move.count for move in self.messages)


def put_in_force(state: State, plan: Plan, change: str, now_s: float) -> State:
    """The state as soon as the plan is being carried out: sessions count at their targets."""
    nodes, hosts = dict(state.nodes), dict(state.hosts)
    for name in plan.add:
        host = hosts.pop(name)
        status = Status.UP if host.is_ready else Status.ADDING
        nodes[name] = Node(
            name,
            host.capacity,
            host.is_configured and host.capacity is not None,
            status,
            zone=host.zone,
            change=change,
            asked_s=now_s,
            is_permanent=host.is_ready,
        )
    for name, mark in plan.mark:
        # From now on all of its channels have to be empty, not only its queue.
        nodes[name] = replace(nodes[name], mark=mark, empty_since_s=None)
    for name in plan.unmark:
        nodes[name] = replace(nodes[name], mark=None)
    for name in plan.replaced:
        nodes[name] = replace(nodes[name], is_replaced=True)
    sessions = dict(state.sessions)
    for name in plan.unmark:  # its clients need not leave any more
        sessions |= {
            id: forget_move(session)
            for id, session in sessions.items()
            if session.node == name and session.target is not None and session.started_s is None
        }
    for move in plan.sessions:
        session = sessions[move.session]
        stays = session.node == move.target  # it waited for its turn to leave
        sessions[move.session] = (
            forget_move(session) if stays else replace(session, target=move.target, change=change, started_s=None)
        )
    transfers = dict(state.transfers)
    for shift in plan.messages:
        transfers[shift.source, shift.target] = Transfer(shift.count, change, now_s)
    return replace(state, nodes=nodes, hosts=hosts, sessions=sessions, transfers=transfers)


def forget_move(session: Session) -> Session:
    """The session as it is without its move."""
    return replace(session, target=None, change=None, started_s=None)


def is_possible(state: State, plan: Plan) -> bool:
    """Whether the plan can still be carried out as it was made."""
    for name in plan.add:
        if name not in state.hosts:
            return False
    for name, _ in plan.mark:
        if name not in state.nodes or not state.nodes[name].is_member:
            return False
    for name in plan.unmark:
        if name not in state.nodes or state.nodes[name].mark is None:
            return False
    added = {*plan.add, *plan.unmark}
    marked = {name for name, _ in plan.mark}
    for move in plan.sessions:
        session = state.sessions.get(move.session)
        if session is None or session.place != move.source or session.started_s is not None:
            return False
        target = state.nodes.get(move.target)
        if move.target in marked or not (move.target in added or (target is not None and target.is_member)):
            return False
    for shift in plan.messages:
        source, aim = state.nodes.get(shift.source), state.nodes.get(shift.target)
        if source is None or source.status is not Status.UP or aim is None or not aim.is_member:
            return False
        if (source.length or 0) < shift.count or (shift.source, shift.target) in state.transfers:
            return False
    return True
