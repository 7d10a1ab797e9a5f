"""What a manager leaves for clients, successors and people, and its form as a JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flyball.cluster.descriptions import describe, describe_plan
from flyball.cluster.policy.decisions import CloseProposal, Decision, Propose, Reply
from flyball.cluster.policy.management import Client, Picture
from flyball.cluster.policy.proposals import Stage
from flyball.cluster.policy.reasons import Code
from flyball.cluster.policy.state import Mark, Node, Session, State, Status, Transfer
from flyball.cluster.policy.work import Work
from flyball.cluster.proposal_records import decode_proposals, encode_proposals
from flyball.store.protocol import NewerSchema

FORMAT = 1
"""Grows when an older Flyball could not read what this one writes."""
HISTORY = 200
"""Decisions that are remembered."""
_ANSWERS = 50
"""Answers to operators that are remembered."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision that was carried out, when, and why."""

    time_s: float
    action: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """What became of an operator's request."""

    request: str
    is_granted: bool
    text: str


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The manager's picture and its latest decisions, oldest first."""

    picture: Picture = field(default_factory=Picture)
    history: tuple[DecisionRecord, ...] = ()
    asked_time_s: float = 0.0
    """When the nodes were asked last, by the wall clock."""
    decided: int = 0
    """How many decisions there have been; the latest are in the history."""
    answers: tuple[AnswerRecord, ...] = ()
    urls: Mapping[str, str] = field(default_factory=dict)
    """Of nodes that a provisioner added, until it has removed them."""
    removing: frozenset[str] = frozenset()
    """Nodes that are being stopped."""
    estimates: Mapping[str, str] = field(default_factory=dict)
    """How each node's capacity is known, or how far its estimate is."""

    @property
    def state(self) -> State:
        return self.picture.state

    def find_answer(self, request: str) -> AnswerRecord | None:
        return next((answer for answer in self.answers if answer.request == request), None)

    def add(self, entries: Iterable[DecisionRecord]) -> ClusterRecord:
        """Remember decisions; one that is only repeated counts once."""
        history, decided = list(self.history), self.decided
        for entry in entries:
            if not history or replace(history[-1], time_s=entry.time_s) != entry:
                history.append(entry)
                decided += 1
        return replace(self, history=tuple(history[-HISTORY:]), decided=decided)


def add_changes(record: ClusterRecord, before: State, time_s: float) -> ClusterRecord:
    """Remember which nodes were lost and came back."""
    entries = []
    for name, node in sorted(record.state.nodes.items()):
        was_up, is_up = before.is_up(name), node.status is Status.UP
        was_known = name in before.nodes and before.nodes[name].status is not Status.ADDING
        if was_known and was_up != is_up:
            sentence = f"{name} answers again" if is_up else f"{name} does not answer"
            code = Code.NODE_BACK if is_up else Code.NODE_LOST
            entries.append(DecisionRecord(time_s, f"{'regain' if is_up else 'lose'} {name}", code.value, sentence))
    return record.add(entries)


def add_decisions(record: ClusterRecord, decisions: Iterable[Decision], time_s: float) -> ClusterRecord:
    """Remember decisions, and answers to operators."""
    found = tuple(decisions)
    entries = []
    for decision in found:
        action = _describe_proposal(record.state, decision) or describe(decision)
        if action is not None:
            entries.append(DecisionRecord(time_s, action, decision.reason.code.value, decision.reason.text))
    answers = (
        AnswerRecord(one.request, one.is_granted, one.reason.text) for one in found if isinstance(one, Reply)
    )
    return replace(record.add(entries), answers=(*record.answers, *answers)[-_ANSWERS:])


def _describe_proposal(state: State, decision: Decision) -> str | None:
    """What is worth knowing of proposals: those that wait, or that people had to do with, or could have had."""
    match decision:
        case Propose(proposal=proposal):
            known = state.proposals.get(proposal.id)
            is_pending = known is not None and known.stage is Stage.PENDING
            over = next((one for one in state.finished if one.id == proposal.id), None)
            is_shadow = over is not None and over.outcome is not None and over.outcome.code is Code.SHADOW
            if is_pending or is_shadow:
                return f"{'propose' if is_pending else 'shadow'} {proposal.id}: {describe_plan(proposal.plan)}"
        case CloseProposal(proposal=id, reason=reason):
            over = next((one for one in state.finished if one.id == id), None)
            by_itself = reason.code is Code.CARRIED_OUT and (over is None or not over.is_approved)
            if not by_itself and reason.code not in (Code.SHADOW, Code.REJECTED):
                return f"close {id}"
    return None


def encode_report(client: Client) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(client)}


def decode_report(document: Mapping[str, Any]) -> Client:
    _check_format(document, "a client's report")
    work = document.get("work")
    known = {name: value for name, value in document.items() if name not in ("format", "work")}
    return Client(**{**known, "lines": tuple(known["lines"])}, work=None if work is None else Work(**work))


def encode_record(record: ClusterRecord) -> dict[str, Any]:
    state = record.state
    return {
        "format": FORMAT,
        "now_s": record.picture.now_s,
        "nodes": [
            {
                "name": node.name,
                "capacity": node.capacity,
                "is_configured": node.is_configured,
                "status": node.status.value,
                "mark": None if node.mark is None else node.mark.value,
                "zone": node.zone,
                "length": node.length,
                "waiting": node.waiting,
                "is_replaced": node.is_replaced,
                "is_permanent": node.is_permanent,
                "change": node.change,
                "asked_s": node.asked_s,
            }
            for node in state.nodes.values()
        ],
        "sessions": [_encode_session(session) for session in state.sessions.values()],
        "transfers": [[*pair, *asdict(transfer).values()] for pair, transfer in state.transfers.items()],
        "proposals": encode_proposals(state),
        "drains": sorted(state.drains),
        "next_id": state.next_id,
        "since_s": [state.overloaded_since_s, state.underloaded_since_s, state.unbalanced_since_s],
        "is_short": state.is_short,
        "history": [asdict(entry) for entry in record.history],
        "decided": record.decided,
        "answers": [asdict(answer) for answer in record.answers],
        "asked_time_s": record.asked_time_s,
        "urls": dict(record.urls),
        "removing": sorted(record.removing),
        "estimates": dict(record.estimates),
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
        )
        for node in document["nodes"]
    ]
    sessions = [_decode_session(*session) for session in document["sessions"]]
    overloaded, underloaded, unbalanced = document["since_s"]
    state = State(
        {node.name: node for node in nodes},
        {session.id: session for session in sessions},
        transfers={(source, target): Transfer(*rest) for source, target, *rest in document["transfers"]},
        drains=frozenset(document["drains"]),
        next_id=document["next_id"],
        overloaded_since_s=overloaded,
        underloaded_since_s=underloaded,
        unbalanced_since_s=unbalanced,
        is_short=document["is_short"],
        **decode_proposals(document["proposals"]),
    )
    return ClusterRecord(
        Picture(state, now_s=document["now_s"]),
        tuple(DecisionRecord(**entry) for entry in document["history"]),
        document["asked_time_s"],
        document["decided"],
        tuple(AnswerRecord(**answer) for answer in document["answers"]),
        document["urls"],
        frozenset(document["removing"]),
        document["estimates"],
    )


def _encode_session(one: Session) -> list[Any]:
    retry_s = one.retry_s if math.isfinite(one.retry_s) else None
    return [one.id, one.role, one.node, one.zone, one.target, one.change, one.started_s, retry_s]


def _decode_session(
    id: str,
    role: Any,
    node: str,
    zone: str,
    target: str | None,
    change: str | None,
    started_s: float | None,
    retry_s: float | None,
) -> Session:
    return Session(id, role, node, zone, target, change, started_s, -math.inf if retry_s is None else retry_s)


def _check_format(document: Mapping[str, Any], what: str) -> None:
    if document["format"] > FORMAT:
        raise NewerSchema(
            f"{what} has format {document['format']}, this Flyball supports formats up to {FORMAT}; "
            "use the same Flyball in all processes"
        )
