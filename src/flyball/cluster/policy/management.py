"""One round of the manager: what it observes becomes events, and the events decisions. Pure.

Ranked: 1. no client is sent to a node that does not answer, so nodes come before clients; 2. a client that says
where it is connected stays there: a manager that lost its state takes the picture from the clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from flyball.cluster.policy.decisions import Decision
from flyball.cluster.policy.events import (
    AddFailed,
    Drain,
    Event,
    Join,
    Leave,
    MessagesMoved,
    MoveFailed,
    NodeAdded,
    NodeBack,
    NodeLost,
    Reading,
    Resume,
    SessionMoved,
    Tick,
)
from flyball.cluster.policy.requests import Request, answer
from flyball.cluster.policy.rules import Rules
from flyball.cluster.policy.state import Host, Node, Role, Session, State, Status
from flyball.cluster.policy.step import step
from flyball.cluster.policy.work import Work


@dataclass(frozen=True, slots=True)
class Client:
    """What a client reports."""

    role: Role
    node: str | None = None
    """Where it is connected; None: nowhere."""
    failed: str | None = None
    """The node to which it could not move."""
    is_idle: bool = False
    """A consumer that has waited for a message for a while."""
    zone: str = ""
    lines: tuple[str, ...] = ()
    """Nodes to which its process has connections, those that it is about to close included."""
    work: Work | None = field(default=None, compare=False)
    """What it has done; it changes all the time, and asks for nothing by itself."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the manager has found out since the last round."""

    now_s: float
    clients: Mapping[str, Client] = field(default_factory=dict)
    """The live ones, by the id of their session."""
    nodes: Mapping[str, Reading | None] | None = None
    """By name; None for a node that did not answer. None: nodes were not asked."""
    moved: tuple[MessagesMoved, ...] = ()
    drains: frozenset[str] = frozenset()
    """Nodes that an operator wants empty."""
    requests: tuple[Request, ...] = ()
    """What operators ask for, oldest first."""
    hosts: Mapping[str, Host] | None = None
    """Where nodes can be added, as far as they are none now; None: not asked."""
    added: tuple[NodeAdded | AddFailed, ...] = ()
    """What became of nodes that were asked for."""


@dataclass(frozen=True)
class Picture:
    """The manager's state: that of the cluster, and since when nodes have not answered; `now_s`: as of then."""

    state: State = field(default_factory=State)
    silent_since_s: Mapping[str, float] = field(default_factory=dict)
    now_s: float = 0.0


def begin(nodes: Mapping[str, Node]) -> Picture:
    """The picture of a cluster with these nodes, of which nothing else is known yet."""
    return Picture(State(nodes=dict(nodes)))


def manage(
    rules: Rules, picture: Picture, observation: Observation, *, lost_after_s: float
) -> tuple[Picture, tuple[Decision, ...]]:
    """Take in what was observed and say what to do. A node that is silent for `lost_after_s` is lost."""
    now_s = observation.now_s
    silent = _note_silence(picture.silent_since_s, observation)
    lost = {name for name, since_s in silent.items() if now_s - since_s >= lost_after_s}
    state = _offer(picture.state, observation.hosts)
    decisions: list[Decision] = []
    for event in _list_node_events(state, observation, lost):
        state, more = step(rules, state, event)
        decisions += more
    for id, client in observation.clients.items():
        state = _adopt(state, id, client)
    for event in _list_client_events(state, observation):
        state, more = step(rules, state, event)
        decisions += more
    if observation.nodes is not None:
        readings = {name: reading for name, reading in observation.nodes.items() if reading is not None}
        state, more = step(rules, state, Tick(now_s, readings))
        decisions += more
    for request in observation.requests:
        state, more = answer(rules, state, request, now_s)
        decisions += more
    return Picture(state, silent, now_s), tuple(decisions)


def _offer(state: State, hosts: Mapping[str, Host] | None) -> State:
    if hosts is None:
        return state
    known = state.hosts
    return replace(
        state,
        hosts={
            name: replace(host, retry_s=known[name].retry_s) if name in known else host
            for name, host in hosts.items()
            if name not in state.nodes
        },
    )


def _note_silence(since_s: Mapping[str, float], observation: Observation) -> Mapping[str, float]:
    if observation.nodes is None:
        return since_s
    return {
        name: since_s.get(name, observation.now_s)
        for name, reading in observation.nodes.items()
        if reading is None
    }


def _list_node_events(state: State, observation: Observation, lost: set[str]) -> Iterator[Event]:
    now_s = observation.now_s
    yield from observation.added
    yield from observation.moved
    for name in sorted(lost):
        if state.is_up(name):
            yield NodeLost(now_s, name)
    for name, reading in sorted((observation.nodes or {}).items()):
        if reading is not None and name in state.nodes and state.nodes[name].status is Status.LOST:
            yield NodeBack(now_s, name)
    for name in sorted((observation.drains - state.drains) & set(state.nodes)):
        yield Drain(now_s, name)
    for name in sorted(state.drains - observation.drains):
        yield Resume(now_s, name)


def _adopt(state: State, id: str, client: Client) -> State:
    """A client that is connected and not known has its place already."""
    if id in state.sessions or client.node is None or not state.is_up(client.node):
        return state
    session = Session(id, client.role, client.node, client.zone)
    return replace(state, sessions={**state.sessions, id: session})


def _list_client_events(state: State, observation: Observation) -> Iterator[Event]:
    now_s, clients = observation.now_s, observation.clients
    for id in state.sessions:
        if id not in clients:
            yield Leave(now_s, id)
    for id, client in clients.items():
        session = state.sessions.get(id)
        if session is None:
            yield Join(now_s, id, client.role, client.zone)
        elif client.node is not None and client.node != session.node and state.is_up(client.node):
            yield SessionMoved(now_s, id, client.node)
        elif session.target is not None and client.failed == session.target:
            yield MoveFailed(now_s, id, session.target)
