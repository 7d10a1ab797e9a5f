"""Proposals as JSON documents, so that they survive their manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flyball.cluster.policy.plans import MessageMove, Plan, SessionMove
from flyball.cluster.policy.proposals import NodeFigures, Proposal, Stage
from flyball.cluster.policy.reasons import Code, Goal, Reason
from flyball.cluster.policy.rules import Kind
from flyball.cluster.policy.state import Mark, State

_REFUSED = 20
"""Rejected plans that a successor knows: those that stay rejected for the longest."""


def encode_proposals(state: State) -> dict[str, Any]:
    """All that a successor needs; of those that are over, only how they ended."""
    refused = sorted(state.refused.items(), key=lambda item: -item[1])[:_REFUSED]
    return {
        "open": [_encode(proposal) for proposal in state.proposals.values()],
        "finished": [
            [one.id, one.kind.value, one.goal.value, _encode_reason(one.reason), _encode_reason(one.outcome)]
            for one in state.finished
            if one.outcome is not None
        ],
        "refused": [[kind.value, asdict(plan), until_s] for (kind, plan), until_s in refused],
        "held": {kind.value: until_s for kind, until_s in state.held.items()},
    }


def decode_proposals(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `State`."""
    proposals = [_decode(proposal) for proposal in document["open"]]
    return {
        "proposals": {proposal.id: proposal for proposal in proposals},
        "finished": tuple(_decode_finished(*entry) for entry in document["finished"]),
        "refused": {(Kind(kind), _decode_plan(plan)): until_s for kind, plan, until_s in document["refused"]},
        "held": {Kind(kind): until_s for kind, until_s in document["held"].items()},
    }


def _encode(proposal: Proposal) -> dict[str, Any]:
    return {
        **asdict(proposal),
        "reason": _encode_reason(proposal.reason),
        "outcome": _encode_reason(proposal.outcome),
    }


def _decode(document: Mapping[str, Any]) -> Proposal:
    return Proposal(
        **{
            **document,
            "kind": Kind(document["kind"]),
            "goal": Goal(document["goal"]),
            "reason": _decode_reason(document["reason"]),
            "plan": _decode_plan(document["plan"]),
            "before": tuple(NodeFigures(**one) for one in document["before"]),
            "after": tuple(NodeFigures(**one) for one in document["after"]),
            "stage": Stage(document["stage"]),
            "outcome": None if document["outcome"] is None else _decode_reason(document["outcome"]),
        }
    )


def _decode_finished(id: str, kind: str, goal: int, reason: list[str], outcome: list[str]) -> Proposal:
    return Proposal(
        id,
        Kind(kind),
        Goal(goal),
        _decode_reason(reason),
        Plan(),
        duration_s=0.0,
        throughput_loss=0.0,
        before=(),
        after=(),
        created_s=0.0,
        expires_s=0.0,
        stage=Stage.FINISHED,
        outcome=_decode_reason(outcome),
    )


def _encode_reason(reason: Reason | None) -> list[str] | None:
    return None if reason is None else [reason.code.value, reason.text]


def _decode_reason(reason: list[str]) -> Reason:
    return Reason(Code(reason[0]), reason[1])


def _decode_plan(document: Mapping[str, Any]) -> Plan:
    return Plan(
        add=tuple(document["add"]),
        mark=tuple((name, Mark(mark)) for name, mark in document["mark"]),
        unmark=tuple(document["unmark"]),
        sessions=tuple(SessionMove(**move) for move in document["sessions"]),
        messages=tuple(MessageMove(**move) for move in document["messages"]),
        replaced=tuple(document["replaced"]),
    )
