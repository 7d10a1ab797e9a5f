"""Proposals: every change is a value first, which can be read, approved, rejected and stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from flyball.cluster.policy.plans import Plan, put_in_force
from flyball.cluster.policy.reasons import Goal, Reason
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import State, compute_load

ProposalKey: TypeAlias = tuple[Kind, Plan]


class Stage(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """One node: x_i and y_i are its parts of all producers and consumers, `load` is L_i."""

    node: str
    producers: int
    consumers: int
    x: float
    y: float
    load: float | None
    is_member: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """A change that the situation asks for."""

    kind: Kind
    goal: Goal
    reason: Reason
    plan: Plan


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change with an id. `throughput_loss` is the expected part of the throughput that is missing meanwhile."""

    id: str
    kind: Kind
    goal: Goal
    reason: Reason
    plan: Plan
    duration_s: float
    throughput_loss: float
    before: tuple[NodeFigures, ...]
    after: tuple[NodeFigures, ...]
    created_s: float
    expires_s: float
    stage: Stage = Stage.PENDING
    outcome: Reason | None = None
    is_approved: bool = False
    """An operator approved it, or asked for it."""

    @property
    def key(self) -> ProposalKey:
        return self.kind, self.plan


def list_figures(state: State) -> tuple[NodeFigures, ...]:
    """x_i, y_i and L_i of every node, by name."""
    producers, consumers = state.producers, state.consumers
    nc, mc = producers.total(), consumers.total()
    return tuple(
        NodeFigures(
            name,
            producers[name],
            consumers[name],
            producers[name] / nc if nc else 0.0,
            consumers[name] / mc if mc else 0.0,
            compute_load(producers[name] + consumers[name], state.capacities[name])
            if state.knows_capacity
            else None,
            node.is_member,
        )
        for name, node in sorted(state.nodes.items())
    )


def make_proposal(rules: Rules, state: State, wanted: Wanted, now_s: float) -> Proposal:
    """The proposal with its predictions."""
    id = f"{wanted.kind.value}-{state.next_id}"
    duration_s, loss = predict(rules, state, wanted.plan)
    return Proposal(
        id,
        wanted.kind,
        wanted.goal,
        wanted.reason,
        wanted.plan,
        duration_s,
        loss,
        list_figures(state),
        list_figures(put_in_force(state, wanted.plan, id, now_s)),
        now_s,
        now_s + rules.expiry_s,
    )


def predict(rules: Rules, state: State, plan: Plan) -> tuple[float, float]:
    """How long the plan takes, and which part of the throughput is missing meanwhile.

    A session pauses for `move_s` while it moves; those of lost nodes are not served anyway. A message that moves
    costs its nodes as much as one that is served. What is on a node that is to be emptied follows its clients.
    """
    moving = sum(1 for move in plan.sessions if state.is_up(move.source))
    moves_s = math.ceil(moving / rules.moves_at_once) * rules.move_s
    if len(plan.sessions) > moving:
        moves_s = max(moves_s, rules.move_s)
    following = count_following(state, plan)
    messages = plan.message_count + following
    exchange_s = plan.message_count / rules.exchange_per_s
    waits = any(not state.hosts[name].is_ready for name in plan.add if name in state.hosts)
    duration_s = max(moves_s, exchange_s, rules.add_s if waits else 0.0) + following / rules.exchange_per_s
    if duration_s == 0.0:
        return 0.0, 0.0
    loss = moving * rules.move_s / (max(1, state.clients) * duration_s)
    rate_per_s = sum(node.rate_per_s or 0.0 for node in state.nodes.values())
    if messages and rate_per_s > 0.0:
        loss += messages / duration_s / rate_per_s
    return duration_s, min(1.0, loss)


def count_following(state: State, plan: Plan) -> int:
    """Messages on the nodes that the plan marks: they move as soon as the clients are gone."""
    return sum(state.nodes[name].length or 0 for name, _ in plan.mark)
