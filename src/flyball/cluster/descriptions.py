"""Decisions, plans and proposals in the words of people, and as values of JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flyball.cluster.policy.decisions import (
    AddNode,
    Decision,
    Elect,
    MarkNode,
    MoveMessages,
    MoveSession,
    Refuse,
    RemoveNode,
    Reply,
    ReportShortage,
    UnmarkNode,
)
from flyball.cluster.policy.plans import Plan
from flyball.cluster.policy.proposals import Proposal, count_following
from flyball.cluster.policy.state import Mark, State

_PURPOSES = {Mark.SHRINK: "remove", Mark.MAINTENANCE: "empty", Mark.RETURNED: "empty"}


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
        case Reply(action=action, is_granted=True):
            return action
        case _:
            return None


def describe_plan(plan: Plan) -> str:
    """What a plan does, in a few words.

    >>> from flyball.cluster.policy.plans import MessageMove, SessionMove
    >>> moves = (SessionMove("s1", "a", "b"), SessionMove("s2", "a", "b"))
    >>> describe_plan(Plan(add=("c",), sessions=moves, messages=(MessageMove("a", "b", 500),)))
    'add c, move 2 sessions, move 500 messages'
    """
    parts = [f"add {name}" for name in plan.add]
    parts += [f"use {name} again" for name in plan.unmark]
    parts += [f"{_PURPOSES[mark]} {name}" for name, mark in plan.mark]
    if plan.sessions:
        parts.append(f"move {len(plan.sessions)} sessions")
    if plan.messages:
        parts.append(f"move {plan.message_count} messages")
    return ", ".join(parts)


def make_document(state: State, proposal: Proposal) -> dict[str, Any]:
    """A proposal as a value of JSON; times are seconds from the record's."""
    plan = proposal.plan
    return {
        "id": proposal.id,
        "kind": proposal.kind.value,
        "stage": proposal.stage.value,
        "goal": {"rank": proposal.goal.value, "name": proposal.goal.name.lower()},
        "reason": proposal.reason.text,
        "change": describe_plan(plan),
        "sessions": [asdict(move) for move in plan.sessions],
        "messages": [asdict(move) for move in plan.messages],
        "messages_to_move": plan.message_count + count_following(state, plan),
        "duration_s": proposal.duration_s,
        "throughput_loss": proposal.throughput_loss,
        "nodes": [
            {
                "node": after.node,
                "before": _figures(next((one for one in proposal.before if one.node == after.node), None)),
                "after": _figures(after),
            }
            for after in proposal.after
        ],
    }


def _figures(figures: Any) -> dict[str, Any] | None:
    return None if figures is None else {key: value for key, value in asdict(figures).items() if key != "node"}
