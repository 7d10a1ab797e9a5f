"""Proposals: predictions, modes, approval, rejection, stopping, expiry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball.cluster.policy.balancing import measure_imbalance
from flyball.cluster.policy.decisions import (
    AddNode,
    Answer,
    CloseProposal,
    Elect,
    MarkNode,
    MoveSession,
    Propose,
    UnmarkNode,
)
from flyball.cluster.policy.events import (
    Approve,
    Drain,
    Join,
    Leave,
    NodeAdded,
    Reject,
    Resume,
    SessionMoved,
    Stop,
    Tick,
)
from flyball.cluster.policy.proposals import Stage
from flyball.cluster.policy.provisioning import Size, judge_size
from flyball.cluster.policy.reasons import Code, Goal
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Host, Mark, Session, State
from flyball.cluster.policy.step import step
from flyball.errors import InvalidValue
from tests.cluster.carry_out import Cluster, make_state, select

ASK = Rules(auto=frozenset(), balance_after_s=0.0, shrink_after_s=0.0)


def _unbalanced(rules: Rules) -> Cluster:
    """Nodes a and b with 4 producers and 8 consumers on a, nothing on b."""
    state = make_state(12, 12)
    sessions = {f"s{at}": Session(f"s{at}", "producer" if at < 4 else "consumer", "a") for at in range(12)}
    return Cluster(rules, replace(state, sessions=sessions))


def test_a_proposal_tells_what_it_does_and_costs() -> None:
    cluster = _unbalanced(replace(ASK, moves_at_once=2))
    (proposed,) = select(cluster.tick(), Propose)
    proposal = proposed.proposal
    assert (proposal.kind, proposal.goal) == (Kind.BALANCE, Goal.BALANCE)
    assert len(proposal.plan.sessions) == 6
    assert [(one.x, one.y, one.load) for one in proposal.before] == [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]
    assert [(one.x, one.y, one.load) for one in proposal.after] == [(0.5, 0.5, 0.5), (0.5, 0.5, 0.5)]
    assert proposal.duration_s == 1.5  # three rounds of half a second
    assert proposal.throughput_loss == pytest.approx(2 / 12)
    assert proposal.expires_s == cluster.now_s + 600.0
    assert proposal.reason.text == "a node is 4 clients away from its share: 6 sessions move"
    assert not select(cluster.log, MoveSession)


def test_a_proposal_stays_the_same_until_it_is_approved() -> None:
    cluster = _unbalanced(ASK)
    (proposed,) = select(cluster.tick(), Propose)
    for _ in range(5):
        assert not select(cluster.tick(), Propose)
    cluster.join("consumer")  # other sessions come: what was read can still be carried out
    id = proposed.proposal.id
    assert list(cluster.state.proposals) == [id]
    decisions = cluster.send(Approve(cluster.now_s, id))
    assert len(select(decisions, MoveSession)) == 6
    assert select(decisions, CloseProposal)[0].reason.code is Code.CARRIED_OUT
    assert measure_imbalance(cluster.state).is_tolerable
    (answer,) = select(cluster.send(Approve(cluster.now_s, id)), Answer)
    assert answer.reason.code is Code.CARRIED_OUT


def test_a_proposal_that_became_impossible_is_replaced() -> None:
    cluster = _unbalanced(ASK)
    (first,) = select(cluster.tick(), Propose)
    leaver = first.proposal.plan.sessions[0].session
    decisions = cluster.send(Leave(cluster.now_s, leaver))
    assert select(decisions, CloseProposal)[0].reason.code is Code.REPLACED
    (second,) = select(decisions, Propose)
    assert second.proposal.id != first.proposal.id
    (answer,) = select(cluster.send(Approve(cluster.now_s, first.proposal.id)), Answer)
    assert answer.reason.code is Code.REPLACED


def test_a_proposal_to_shrink_stays_while_clients_come_and_ends_when_they_do_not_fit() -> None:
    cluster = Cluster(ASK, make_state(12, 12))
    cluster.join("consumer", 6)
    (proposed,) = select(cluster.tick(), Propose)
    assert proposed.proposal.kind is Kind.SHRINK
    cluster.join("consumer", 3)  # 9 <= 0.8 · 12
    assert list(cluster.state.proposals) == [proposed.proposal.id]
    decisions = cluster.join("consumer")
    assert [one.reason.code for one in select(decisions, CloseProposal)] == [Code.WITHDRAWN]
    (answer,) = select(cluster.send(Approve(cluster.now_s, proposed.proposal.id)), Answer)
    assert answer.reason.code is Code.WITHDRAWN
    assert not select(cluster.log, MarkNode)


def test_nodes_to_be_drained_get_no_client_that_joins() -> None:
    cluster = Cluster(ASK, make_state(12, 12))
    cluster.send(Drain(0.0, "a"))
    assert [one.node for one in select(cluster.join("producer", 3), Elect)] == ["b", "b", "b"]


def test_a_rejected_proposal_is_not_repeated_before_it_would_have_expired() -> None:
    cluster = _unbalanced(ASK)
    (proposed,) = select(cluster.tick(), Propose)
    decisions = cluster.send(Reject(cluster.now_s, proposed.proposal.id))
    assert select(decisions, CloseProposal)[0].reason.code is Code.REJECTED
    assert not select(cluster.tick(599.0), Propose)
    assert select(cluster.tick(2.0), Propose)


def test_a_proposal_expires_and_is_made_again() -> None:
    cluster = _unbalanced(ASK)
    (first,) = select(cluster.tick(), Propose)
    decisions = cluster.tick(600.0)
    assert [one.reason.code for one in select(decisions, CloseProposal)] == [Code.EXPIRED]
    (second,) = select(decisions, Propose)
    assert second.proposal.plan == first.proposal.plan
    (answer,) = select(cluster.send(Approve(cluster.now_s, first.proposal.id)), Answer)
    assert answer.reason.code is Code.EXPIRED


def test_stop_begins_nothing_more_and_asks_from_then_on() -> None:
    rules = Rules(balance_after_s=0.0, moves_at_once=1)
    state, decisions = step(rules, _unbalanced(rules).state, Tick(0.0))
    (move,) = select(decisions, MoveSession)
    (proposed,) = select(decisions, Propose)
    state, decisions = step(rules, state, Stop(0.1, proposed.proposal.id))
    assert select(decisions, CloseProposal)[0].reason.code is Code.STOPPED
    state, decisions = step(rules, state, SessionMoved(0.2, move.session, move.target))
    assert not select(decisions, MoveSession)
    (asked,) = select(decisions, Propose)  # five are left
    assert len(asked.proposal.plan.sessions) == 5
    assert state.proposals[asked.proposal.id].stage is Stage.PENDING
    state, decisions = step(rules, state, Approve(0.3, asked.proposal.id))
    assert len(select(decisions, MoveSession)) == 1


def test_so_many_sessions_move_at_once() -> None:
    rules = Rules(balance_after_s=0.0, moves_at_once=2)
    state, decisions = step(rules, _unbalanced(rules).state, Tick(0.0))
    moves = select(decisions, MoveSession)
    assert len(moves) == 2
    state, decisions = step(rules, state, SessionMoved(0.5, moves[0].session, moves[0].target))
    assert len(select(decisions, MoveSession)) == 1


def test_a_move_that_is_not_reported_is_tried_again() -> None:
    rules = Rules(balance_after_s=0.0, moves_at_once=12)
    state, decisions = step(rules, _unbalanced(rules).state, Tick(0.0))
    assert len(select(decisions, MoveSession)) == 6
    state, decisions = step(rules, state, Tick(10.5))
    assert not select(decisions, MoveSession)
    _, decisions = step(rules, state, Tick(16.0))
    assert len(select(decisions, MoveSession)) == 6


def test_modes() -> None:
    advise = _unbalanced(replace(ASK, mode="advise", auto=frozenset(Kind)))
    (proposed,) = select(advise.tick(), Propose)
    (answer,) = select(advise.send(Approve(advise.now_s, proposed.proposal.id)), Answer)
    assert answer.reason.code is Code.MODE
    shadow = _unbalanced(replace(ASK, mode="shadow", auto=frozenset(Kind)))
    decisions = shadow.tick()
    assert len(select(decisions, Propose)) == 1
    assert select(decisions, CloseProposal)[0].reason.code is Code.SHADOW
    assert not select(shadow.tick(), Propose)
    assert not select((*advise.log, *shadow.log), MoveSession)


def test_growth_waits_for_approval_and_clients_are_served_meanwhile() -> None:
    cluster = Cluster(ASK, make_state(3, hosts=[Host("z", 3, is_ready=True)]))
    cluster.join("producer", 3)
    decisions = cluster.join("consumer")
    assert select(decisions, Elect)[0].node == "a"
    (proposed,) = select(decisions, Propose)
    assert (proposed.proposal.kind, proposed.proposal.goal) == (Kind.GROW, Goal.NO_OVERLOAD)
    assert not select(cluster.join("consumer"), Propose)
    assert select(cluster.send(Approve(cluster.now_s, proposed.proposal.id)), AddNode)
    assert "z" in cluster.state.nodes


def test_unknown_proposals_are_answered() -> None:
    for event in (Approve(0.0, "grow-7"), Reject(0.0, "grow-7"), Stop(0.0, "grow-7")):
        _, decisions = step(Rules(), State(), event)
        (answer,) = select(decisions, Answer)
        assert answer.reason.text == "there is no proposal grow-7"


def test_maintenance_empties_a_node_and_brings_it_back() -> None:
    cluster = Cluster(Rules(balance_after_s=0.0), make_state(12, 12))
    cluster.join("producer", 4)
    cluster.join("consumer", 8)
    cluster.tick(1.0, a=300, b=0)
    decisions = cluster.send(Drain(cluster.now_s, "a"))
    assert len(select(decisions, MoveSession)) == 6
    assert cluster.counts() == {"a": (0, 0), "b": (4, 8)}
    assert (cluster.state.nodes["a"].length, cluster.state.nodes["b"].length) == (0, 300)
    assert cluster.state.nodes["a"].mark is Mark.MAINTENANCE
    cluster.tick(100.0)
    assert select(cluster.send(Resume(cluster.now_s, "a")), UnmarkNode)
    assert cluster.counts() == {"a": (2, 4), "b": (2, 4)}


def test_the_last_node_is_emptied_when_another_serves() -> None:
    state = make_state(12, hosts=[Host("z", 12)])
    rules = Rules()
    state, _ = step(rules, state, Join(0.0, "s1", "producer"))
    state, decisions = step(rules, state, Drain(1.0, "a"))
    assert [one.node for one in select(decisions, AddNode)] == ["z"]
    assert not select(decisions, MarkNode)
    state, decisions = step(rules, state, NodeAdded(7.0, "z"))
    assert select(decisions, MarkNode)
    assert [(one.session, one.target) for one in select(decisions, MoveSession)] == [("s1", "z")]


@pytest.mark.parametrize(
    ("clients", "size", "code"),
    [(25, Size.TOO_FEW, Code.OVERLOADED), (20, Size.RIGHT, Code.RIGHT_SIZE), (9, Size.TOO_MANY, Code.UNDERLOADED)],
)
def test_the_verdict_on_the_size(clients: int, size: Size, code: Code) -> None:
    cluster = Cluster(replace(ASK, mode="advise"), make_state(12, 12))
    cluster.join("consumer", clients)
    verdict = judge_size(cluster.rules, cluster.state)
    assert (verdict.size, verdict.reason.code) == (size, code)
    assert judge_size(Rules(), make_state(None, None)).size is Size.UNKNOWN


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grow_at": 0.0}, "Rules.grow_at must be a number > 0 and <= 1, got 0.0"),
        ({"grow_at": 0.7}, r"Rules.shrink_below must be <= grow_at \(0.7\)"),
        ({"shrink_below": float("nan")}, "Rules.shrink_below must be a number >= 0 and <= 1, got nan"),
        ({"min_nodes": 0}, "Rules.min_nodes must be an integer >= 1, got 0"),
        ({"min_nodes": 3, "max_nodes": 2}, r"Rules.max_nodes must be >= min_nodes \(3\), got 2"),
        ({"move_s": float("inf")}, "Rules.move_s must be a number > 0"),
        ({"mode": "off"}, "Rules.mode must be one of advise, shadow, on, got 'off'"),
        ({"auto": frozenset({"explode"})}, "Rules.auto may have node_lost, grow, .*, got 'explode'"),
        ({"allowed_length": -1}, "Rules.allowed_length must be an integer >= 0, got -1"),
    ],
)
def test_rules_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Rules(**options)  # type: ignore[arg-type]
