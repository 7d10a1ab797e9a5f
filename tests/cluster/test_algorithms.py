"""Algorithms 1 and 2 of the clustered queue, line by line, and rules R1 to R6."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flyball.cluster.policy.decisions import (
    AddNode,
    Elect,
    MarkNode,
    MoveMessages,
    MoveSession,
    Refuse,
    RemoveNode,
    ReportShortage,
    UnmarkNode,
)
from flyball.cluster.policy.events import Join, Leave, Tick
from flyball.cluster.policy.proposals import list_figures
from flyball.cluster.policy.reasons import Code
from flyball.cluster.policy.rules import ORIGINAL, Kind, Rules
from flyball.cluster.policy.state import Host, Mark, Session, State
from flyball.cluster.policy.step import step
from flyball.errors import InvalidValue
from tests.cluster.carry_out import Cluster, make_state, select

READY = Host("z", 12, is_ready=True)


def _with_sessions(state: State, **places: tuple[int, int]) -> State:
    """Producers and consumers on each node."""
    sessions = {}
    for node, (producers, consumers) in places.items():
        for at in range(producers + consumers):
            role = "producer" if at < producers else "consumer"
            sessions[f"{node}{at}"] = Session(f"{node}{at}", role, node)  # type: ignore[arg-type]
    return replace(state, sessions=sessions)


# Algorithm 1: on join


def test_join_below_full_load_adds_no_queue() -> None:
    cluster = Cluster(ORIGINAL, _with_sessions(make_state(12, hosts=[READY]), a=(4, 7)))
    decisions = cluster.join("consumer")
    assert not select(decisions, AddNode)
    assert select(decisions, Elect)[0].node == "a"


def test_join_at_full_load_adds_a_queue_first_and_elects_it() -> None:
    cluster = Cluster(ORIGINAL, _with_sessions(make_state(12, hosts=[READY]), a=(4, 8)))
    decisions = cluster.join("producer")
    assert [type(one) for one in decisions if isinstance(one, AddNode | Elect)] == [AddNode, Elect]
    assert select(decisions, Elect)[0].node == "z"  # N = 0: the smallest x_i
    assert select(decisions, AddNode)[0].reason.code is Code.OVERLOADED
    assert cluster.state.load == pytest.approx(13 / 24)


@pytest.mark.parametrize(("role", "node"), [("producer", "b"), ("consumer", "a")])
def test_elect_queue_takes_the_smallest_x_or_y(role: str, node: str) -> None:
    cluster = Cluster(ORIGINAL, _with_sessions(make_state(12, 12), a=(3, 1), b=(2, 2)))
    assert select(cluster.join(role), Elect)[0].node == node


def test_create_session_counts_the_client_at_its_queue() -> None:
    cluster = Cluster(ORIGINAL, make_state(12, 12))
    cluster.join("producer")
    assert cluster.counts() == {"a": (1, 0), "b": (0, 0)}


def test_join_never_elects_a_marked_queue() -> None:
    state = _with_sessions(make_state(12, 12), a=(3, 3))
    nodes = {**state.nodes, "b": replace(state.nodes["b"], mark=Mark.SHRINK, length=1)}
    cluster = Cluster(ORIGINAL, replace(state, nodes=nodes))
    assert select(cluster.join("producer"), Elect)[0].node == "a"


def test_a_marked_queue_does_not_count_and_is_used_again_before_another_is_added() -> None:
    state = _with_sessions(make_state(12, 12, hosts=[READY]), a=(4, 8), b=(0, 1))
    nodes = {**state.nodes, "b": replace(state.nodes["b"], mark=Mark.SHRINK)}
    cluster = Cluster(ORIGINAL, replace(state, nodes=nodes))
    assert cluster.state.load == pytest.approx(13 / 12)
    decisions = cluster.join("producer")
    assert select(decisions, UnmarkNode)[0].node == "b"
    assert not select(decisions, AddNode)
    assert select(decisions, Elect)[0].node == "b"


def test_without_a_free_host_the_least_loaded_serves_and_the_shortage_is_reported_once() -> None:
    cluster = Cluster(Rules(), _with_sessions(make_state(4, 12), a=(2, 3), b=(4, 8)))
    decisions = cluster.join("producer")
    assert select(decisions, Elect)[0].node == "b"  # 13/12 < 6/4
    assert select(decisions, Elect)[0].reason.code is Code.NO_FREE_HOST
    assert [one.reason.code for one in select(decisions, ReportShortage)] == [Code.NO_FREE_HOST]
    assert not select(cluster.join("producer"), ReportShortage)
    for id in list(cluster.state.sessions)[:10]:
        cluster.send(Leave(cluster.now_s, id))
    assert not cluster.state.is_short
    assert select(cluster.join("consumer", 12), ReportShortage)


def test_a_host_that_needs_time_serves_later_and_is_asked_for_once() -> None:
    state = _with_sessions(make_state(12, hosts=[Host("y", 12), Host("z", 12)]), a=(4, 8))
    state, first = step(Rules(), state, Join(0.0, "s1", "producer"))
    state, second = step(Rules(), state, Join(0.1, "s2", "consumer"))
    assert [one.node for one in select((*first, *second), AddNode)] == ["y"]
    assert [one.node for one in select((*first, *second), Elect)] == ["a", "a"]


def test_without_any_node_a_join_is_refused() -> None:
    _, decisions = step(Rules(), State(), Join(0.0, "s1", "producer"))
    assert select(decisions, Refuse)[0].reason.code is Code.NO_NODE


# Algorithm 2: on leave


def test_leave_removes_a_marked_queue_when_its_last_client_left() -> None:
    state = _with_sessions(make_state(12, 12), a=(4, 4), b=(0, 2))
    nodes = {**state.nodes, "b": replace(state.nodes["b"], mark=Mark.SHRINK)}
    cluster = Cluster(ORIGINAL, replace(state, nodes=nodes))
    assert not select(cluster.send(Leave(0.0, "b0")), RemoveNode)
    removed = select(cluster.send(Leave(0.0, "b1")), RemoveNode)
    assert [one.node for one in removed] == ["b"]
    assert "b" not in cluster.state.nodes
    assert "b" in cluster.state.hosts


def test_a_marked_queue_with_messages_is_emptied_before_it_is_removed() -> None:
    state = _with_sessions(make_state(12, 12), a=(4, 4), b=(0, 1))
    nodes = {**state.nodes, "b": replace(state.nodes["b"], mark=Mark.SHRINK, length=700)}
    cluster = Cluster(ORIGINAL, replace(state, nodes=nodes))
    decisions = cluster.send(Leave(0.0, "b0"))
    moved = [(one.source, one.target, one.count) for one in select(decisions, MoveMessages)]
    assert moved == [("b", "a", 700)]
    kinds = [type(one) for one in decisions]
    assert kinds.index(MoveMessages) < kinds.index(RemoveNode)
    assert cluster.state.nodes["a"].length == 700


def test_a_queue_that_is_not_marked_stays_without_clients() -> None:
    cluster = Cluster(replace(ORIGINAL, min_nodes=2), _with_sessions(make_state(12, 12), a=(1, 0), b=(1, 0)))
    decisions = cluster.send(Leave(0.0, "b0"))
    assert not select(decisions, RemoveNode)
    assert not select(decisions, MarkNode)


@pytest.mark.parametrize(("clients", "marks"), [(14, False), (13, True)])
def test_leave_marks_a_removable_queue(clients: int, marks: bool) -> None:
    """C_i <= Cc − (Nc + Mc): 12 <= 24 − 12 after one of 13 left; not after one of 14."""
    cluster = Cluster(ORIGINAL, _with_sessions(make_state(12, 12), a=(2, 5), b=(2, clients - 9)))
    decisions = cluster.send(Leave(0.0, "a0"))
    assert bool(select(decisions, MarkNode)) is marks
    if marks:
        assert select(decisions, MarkNode)[0].reason.code is Code.UNDERLOADED
        assert cluster.state.load == 1.0


def test_the_published_rules_wait_for_clients_and_ours_move_them() -> None:
    state = _with_sessions(make_state(12, 12), a=(2, 3), b=(1, 2))
    original = Cluster(ORIGINAL, state)
    assert not select(original.send(Leave(0.0, "a0")), MoveSession)
    ours = Cluster(replace(ORIGINAL, auto=frozenset(Kind), drain_at_once=True), state)
    decisions = ours.send(Leave(0.0, "a0"))
    assert len(select(decisions, MoveSession)) == 3
    assert [one.node for one in select(decisions, RemoveNode)] == ["b"]
    assert ours.counts() == {"a": (2, 5)}


def test_the_last_queue_is_never_marked() -> None:
    cluster = Cluster(ORIGINAL, _with_sessions(make_state(12), a=(1, 0)))
    assert not select(cluster.send(Leave(0.0, "a0")), MarkNode)


# Rules


def test_r1_r2_a_flooding_queue_gets_the_consumer_and_a_draining_one_the_producer() -> None:
    state = _with_sessions(make_state(12, 12), a=(1, 1), b=(2, 1))
    assert select(Cluster(Rules(), state).join("consumer"), Elect)[0].node == "b"
    state = _with_sessions(make_state(12, 12), a=(1, 1), b=(1, 2))
    assert select(Cluster(Rules(), state).join("producer"), Elect)[0].node == "b"


def test_r3_a_full_queue_gets_no_client_while_another_has_room() -> None:
    cluster = Cluster(Rules(), _with_sessions(make_state(12, 12), a=(0, 12), b=(6, 0)))
    assert select(cluster.join("producer"), Elect)[0].node == "b"


def test_r4_clients_of_unequal_queues_are_in_proportion_to_capacity() -> None:
    cluster = Cluster(Rules(), make_state(12, 6, 6))
    cluster.join("producer", 8)
    cluster.join("consumer", 16)
    assert cluster.counts() == {"a": (4, 8), "b": (2, 4), "c": (2, 4)}
    figures = {one.node: (one.x, one.y, one.load) for one in list_figures(cluster.state)}
    assert figures == {"a": (0.5, 0.5, 1.0), "b": (0.25, 0.25, 1.0), "c": (0.25, 0.25, 1.0)}


def test_r5_an_overloaded_cluster_grows_without_a_join() -> None:
    """As when measured capacities have fallen."""
    cluster = Cluster(Rules(), _with_sessions(make_state(12, hosts=[Host("z", 12)]), a=(5, 8)))
    assert not select(cluster.tick(0.0), AddNode)
    assert not select(cluster.tick(4.0), AddNode)
    assert [one.node for one in select(cluster.tick(1.0), AddNode)] == ["z"]


def test_r6_an_underloaded_cluster_shrinks_after_a_while_and_only_below_the_band() -> None:
    state = _with_sessions(make_state(12, 12), a=(2, 3), b=(2, 3))
    cluster = Cluster(Rules(), state)
    for _ in range(10):
        assert not select(cluster.tick(20.0), MarkNode)  # 10 > 0.8 · 12
    cluster.send(Leave(cluster.now_s, "a0"))
    assert not select(cluster.tick(59.0), MarkNode)
    assert select(cluster.tick(1.0), MarkNode)


def test_locality_decides_between_equal_queues() -> None:
    state = make_state(12, 12)
    nodes = {**state.nodes, "b": replace(state.nodes["b"], zone="east")}
    _, decisions = step(Rules(), replace(state, nodes=nodes), Join(0.0, "s", "producer", zone="east"))
    assert select(decisions, Elect)[0].node == "b"


def test_a_session_that_joins_again_keeps_its_place() -> None:
    cluster = Cluster(Rules(), make_state(12, 12))
    cluster.join("producer", 3)
    decisions = cluster.send(Join(1.0, "s2", "producer"))
    assert select(decisions, Elect)[0].node == "b"
    assert select(decisions, Elect)[0].reason.code is Code.ALREADY_CONNECTED
    assert cluster.state.clients == 3
    cluster.send(Join(1.0, "s2", "consumer"))
    assert cluster.state.clients == 3


@pytest.mark.parametrize("now_s", [math.nan, math.inf])
def test_times_that_are_no_numbers_are_refused(now_s: float) -> None:
    with pytest.raises(InvalidValue, match="now_s of an event must be a finite number of seconds"):
        step(Rules(), State(), Tick(now_s))
