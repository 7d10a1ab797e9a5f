"""What a manager leaves for clients, successors and people, and its form as a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flyball.cluster.policy.decisions import (
    AddNode,
    Decision,
    Elect,
    MarkNode,
    MoveMessages,
    MoveSession,
    Propose,
    Refuse,
    RemoveNode,
    ReportShortage,
    UnmarkNode,
)
from flyball.cluster.policy.management import Client, Picture
from flyball.cluster.policy.reasons import Code
from flyball.cluster.policy.state import Mark, Node, Session, State, Status
from flyball.store.protocol import NewerSchema

FORMAT = 1
"""Grows when an older Flyball could not read what this one writes."""
HISTORY = 200
"""Decisions that are remembered."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision that was carried out, when, and why."""

    time_s: float
    action: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The manager's picture and its latest decisions, oldest first."""

    picture: Picture = field(default_factory=Picture)
    history: tuple[DecisionRecord, ...] = ()
    asked_time_s: float = 0.0
    """When the nodes were asked last, by the wall clock."""

    @property
    def state(self) -> State:
        return self.picture.state


def add_changes(record: ClusterRecord, before: State, time_s: float) -> ClusterRecord:
    """Remember which nodes were lost and came back."""
    history = list(record.history)
    for name, node in sorted(record.state.nodes.items()):
        was_up, is_up = before.is_up(name), node.status is Status.UP
        if name in before.nodes and was_up != is_up:
            sentence = f"{name} answers again" if is_up else f"{name} does not answer"
            code = Code.NODE_BACK if is_up else Code.NODE_LOST
            history.append(DecisionRecord(time_s, f"{'regain' if is_up else 'lose'} {name}", code.value, sentence))
    return replace(record, history=tuple(history[-HISTORY:]))


def add_decisions(record: ClusterRecord, decisions: Iterable[Decision], time_s: float) -> ClusterRecord:
    """Remember decisions; a refusal that is only repeated counts once."""
    history = list(record.history)
    for decision in decisions:
        action = describe(decision)
        if action is None or isinstance(decision, Propose):
            continue
        entry = DecisionRecord(time_s, action, decision.reason.code.value, decision.reason.text)
        if history and replace(history[-1], time_s=time_s) == entry:
            continue
        history.append(entry)
    return replace(record, history=tuple(history[-HISTORY:]))


def describe(decision: Decision) -> str | None:
    """What is done, for people; None: nothing that is carried out."""
    match decision:
        case Elect(session=session, role=role, node=node):
            return f"elect {node} for the {role} {session}"
        case Refuse(session=session):
            return f"refuse {session}"
        case AddNode(node=node):
            return f"add {node}"
        case MarkNode(node=node, mark=mark):
            return f"mark {node}: {mark.value}"
        case UnmarkNode(node=node):
            return f"unmark {node}"
        case RemoveNode(node=node):
            return f"remove {node}"
        case MoveSession(session=session, source=source, target=target):
            return f"move {session} from {source} to {target}"
        case MoveMessages(source=source, target=target, count=count):
            return f"move {count} messages from {source} to {target}"
        case ReportShortage():
            return "report a shortage of nodes"
        case _:
            return None


def encode_report(client: Client) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(client)}


def decode_report(document: Mapping[str, Any]) -> Client:
    _check_format(document, "a client's report")
    return Client(**{name: value for name, value in document.items() if name != "format"})


def encode_record(record: ClusterRecord) -> dict[str, Any]:
    state = record.state
    return {
        "format": FORMAT,
        "nodes": [
            {
                "name": node.name,
                "capacity": node.capacity,
                "status": node.status.value,
                "mark": None if node.mark is None else node.mark.value,
                "zone": node.zone,
                "length": node.length,
                "waiting": node.waiting,
                "is_replaced": node.is_replaced,
            }
            for node in state.nodes.values()
        ],
        "sessions": [
            # A move that waits for its turn is planned again by a successor.
            [one.id, one.role, one.node, one.zone, one.target if one.started_s is not None else None]
            for one in state.sessions.values()
        ],
        "drains": sorted(state.drains),
        "next_id": state.next_id,
        "history": [asdict(entry) for entry in record.history],
        "asked_time_s": record.asked_time_s,
    }


def decode_record(document: Mapping[str, Any]) -> ClusterRecord:
    _check_format(document, "the cluster's state")
    nodes = [
        Node(
            **{
                **node,
                "status": Status(node["status"]),
                "mark": None if node["mark"] is None else Mark(node["mark"]),
            },
            is_configured=True,
            is_permanent=True,
        )
        for node in document["nodes"]
    ]
    sessions = [Session(id, role, node, zone, target) for id, role, node, zone, target in document["sessions"]]
    state = State(
        {node.name: node for node in nodes},
        {session.id: session for session in sessions},
        drains=frozenset(document["drains"]),
        next_id=document["next_id"],
    )
    history = tuple(DecisionRecord(**entry) for entry in document["history"])
    return ClusterRecord(Picture(state), history, document["asked_time_s"])


def _check_format(document: Mapping[str, Any], what: str) -> None:
    if document["format"] > FORMAT:
        raise NewerSchema(
            f"{what} has format {document['format']}, this Flyball supports formats up to {FORMAT}; "
            "use the same Flyball in all processes"
        )
