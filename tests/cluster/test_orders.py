"""An operator's own wish for a node more or less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flyball.cluster.policy.decisions import (
    AddNode,
    Answer,
    MarkNode,
    MoveMessages,
    MoveSession,
    Propose,
    RemoveNode,
    Reply,
)
from flyball.cluster.policy.events import Grow, Reading, Shrink, Tick
from flyball.cluster.policy.reasons import Code
from flyball.cluster.policy.requests import Request, answer
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Host, Mark, Status
from flyball.cluster.policy.step import step
from tests.cluster.carry_out import Cluster, RandomWorld, make_state, select

RULES = Rules(min_nodes=1, max_nodes=3, shrink_after_s=0.0)


def test_a_node_that_was_asked_for_stays_though_nobody_needs_it() -> None:
    cluster = Cluster(RULES, make_state(12, hosts=[Host("x", 12)]))
    assert [one.node for one in select(cluster.send(Grow(0.0)), AddNode)] == ["x"]
    for _ in range(20):
        cluster.tick(29.0, a=0, x=0)
    assert set(cluster.state.nodes) == {"a", "x"}
    assert [one.kind for one in cluster.state.proposals.values()] == [Kind.SHRINK]  # it is only proposed
    cluster.tick(100.0, a=0, x=0)
    cluster.tick(1.0, a=0, x=0)
    assert len(cluster.state.nodes) == 1  # ten minutes are over


def test_a_node_that_was_given_up_by_order_is_emptied_and_removed_without_another_approval() -> None:
    rules = replace(RULES, auto=frozenset({Kind.NODE_LOST}), release_after_s=2.0)
    cluster = Cluster(rules, make_state(12, 12))
    cluster.join("producer", 6)
    cluster.tick(1.0, a=100, b=50)
    decisions = cluster.send(Shrink(cluster.now_s, "b"))
    assert [one.mark for one in select(decisions, MarkNode)] == [Mark.SHRINK]
    assert sum(one.count for one in select(decisions, MoveMessages)) == 50
    assert cluster.counts() == {"a": (6, 0), "b": (0, 0)}
    assert not select(cluster.tick(1.0, a=150, b=0), RemoveNode)  # what is on its way may still arrive
    cluster.tick(1.0, a=150, b=0)
    assert [one.node for one in select(cluster.tick(1.0, a=150, b=0), RemoveNode)] == ["b"]


def test_an_order_to_shrink_follows_an_order_to_grow() -> None:
    cluster = Cluster(RULES, make_state(12, hosts=[Host("x", 12)]))
    cluster.send(Grow(0.0))
    cluster.tick(1.0, a=0, x=70)
    decisions = cluster.send(Shrink(cluster.now_s, "x"))
    assert [one.source for one in select(decisions, MoveMessages)] == ["x"]


@pytest.mark.parametrize("mode", ["advise", "shadow"])
def test_nothing_is_done_in_other_modes(mode: str) -> None:
    state = make_state(12, 12, hosts=[Host("x", 12)])
    rules = replace(RULES, mode=mode)  # type: ignore[arg-type]
    for action, subject in (("grow", ""), ("shrink", "a")):
        after, decisions = answer(rules, state, Request("r", action, subject), 0.0)  # type: ignore[arg-type]
        (reply,) = select(decisions, Reply)
        assert (reply.is_granted, reply.reason.code) == (False, Code.MODE)
        assert after.nodes == state.nodes


@pytest.mark.parametrize("seed", range(40))
def test_orders_keep_the_limits_and_never_overload(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rules = Rules(min_nodes=int(draw.integers(1, 3)), max_nodes=4, shrink_after_s=5.0)
    world = RandomWorld(rules, make_state(6, 4, 3, hosts=[Host("x", 5), Host("y", 2, is_ready=True)]), draw)
    for _ in range(80):
        world.advance()
        before = world.state
        event = Grow(world.now_s) if draw.random() < 0.5 else Shrink(world.now_s, str(draw.choice(["", "a", "x"])))
        state, decisions = step(rules, before, event)
        if select(decisions, Answer):
            assert not any(one.proposal.is_approved for one in select(decisions, Propose))
            continue
        (ordered,) = [one.proposal for one in select(decisions, Propose) if one.proposal.is_approved]
        if isinstance(event, Grow):
            assert ordered.plan.add or ordered.plan.unmark
            if ordered.plan.add:  # lost ones that came back are not counted by it
                assert sum(node.status is not Status.LOST for node in before.nodes.values()) < rules.max_nodes
        else:
            ((name, mark),) = ordered.plan.mark
            assert mark is Mark.SHRINK
            assert event.node in ("", name)
            assert len(before.members) - 1 >= rules.min_nodes
            rest = sum(node.capacity or 0 for node in before.members if node.name != name)
            assert before.clients <= rest
            assert all(move.target != name for move in ordered.plan.sessions)
        if draw.random() < 0.5:
            world.state = state
            world.pending += [one for one in decisions if isinstance(one, AddNode | MoveMessages | MoveSession)]


def test_a_node_is_not_removed_while_a_client_has_a_connection_or_another_channel_has_messages() -> None:
    rules = replace(RULES, release_after_s=2.0, shrink_after_s=600.0)
    cluster = Cluster(rules, make_state(12, 12))
    for _ in range(3):  # its queue has been empty for long when it is marked
        cluster.now_s += 1.0
        cluster.send(Tick(cluster.now_s, {"a": Reading(0, is_used=True), "b": Reading(0, is_used=True)}))
    cluster.send(Shrink(cluster.now_s, "b"))
    assert cluster.state.nodes["b"].mark is Mark.SHRINK
    for reading in (Reading(0, is_used=True), Reading(0, is_used=True), Reading(7), Reading(0), Reading(0)):
        cluster.now_s += 1.0
        cluster.send(Tick(cluster.now_s, {"a": Reading(0), "b": reading}))
        assert "b" in cluster.state.nodes
    cluster.now_s += 1.0
    cluster.send(Tick(cluster.now_s, {"a": Reading(7), "b": Reading(0)}))
    assert "b" not in cluster.state.nodes
