"""Lost nodes and nodes that come back; messages between queues."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flyball.cluster.policy.decisions import AddNode, Elect, MoveMessages, MoveSession, RemoveNode, UnmarkNode
from flyball.cluster.policy.events import (
    AddFailed,
    Join,
    Leave,
    MessagesMoved,
    NodeAdded,
    NodeBack,
    NodeLost,
    Reading,
    Tick,
)
from flyball.cluster.policy.exchange import spread
from flyball.cluster.policy.reasons import Code
from flyball.cluster.policy.rules import Rules
from flyball.cluster.policy.state import Host, Mark, Node, Session, State, Status, Transfer
from flyball.cluster.policy.step import step
from flyball.errors import InvalidValue
from tests.cluster.carry_out import Cluster, make_state, select


def _cluster(*capacities: int, hosts: tuple[Host, ...] = ()) -> Cluster:
    cluster = Cluster(Rules(balance_after_s=0.0), make_state(*capacities, hosts=hosts))
    cluster.join("producer", sum(capacities) // 3)
    cluster.join("consumer", sum(capacities) // 3)
    return cluster


def test_clients_of_a_lost_node_are_elected_anew_at_once_and_it_is_replaced() -> None:
    cluster = _cluster(6, 6, hosts=(Host("z", 6, is_ready=True),))
    decisions = cluster.send(NodeLost(0.0, "a"))
    assert [one.node for one in select(decisions, AddNode)] == ["z"]
    moved = select(decisions, MoveSession)
    assert {one.source for one in moved} == {"a"}
    assert {one.reason.code for one in moved} == {Code.NODE_LOST}
    assert cluster.counts() == {"a": (0, 0), "b": (2, 2), "z": (2, 2)}


def test_a_node_that_the_cluster_can_do_without_is_not_replaced() -> None:
    cluster = _cluster(6, 6, 6, hosts=(Host("z", 6, is_ready=True),))
    for id in list(cluster.state.sessions)[2:]:
        cluster.state = replace(
            cluster.state, sessions={key: one for key, one in cluster.state.sessions.items() if key != id}
        )
    decisions = cluster.send(NodeLost(0.0, "a"))
    assert not select(decisions, AddNode)
    assert all(cluster.state.nodes[one.node].is_member for one in cluster.state.sessions.values())


def test_all_nodes_lost_and_no_host() -> None:
    cluster = _cluster(6)
    assert not select(cluster.send(NodeLost(0.0, "a")), MoveSession)
    assert not select(cluster.join("producer"), Elect)
    decisions = cluster.send(NodeBack(5.0, "a"))  # what survived on it is not known yet, but it is needed
    assert cluster.state.nodes["a"].mark is None or cluster.state.nodes["a"].mark is Mark.RETURNED
    decisions += cluster.tick(6.0, a=10)
    cluster.join("producer")
    assert cluster.state.nodes["a"].is_member


def test_a_replacement_that_fails_is_tried_again() -> None:
    rules = Rules()
    cluster = _cluster(6, 6, hosts=(Host("z", 6),))
    state, decisions = step(rules, cluster.state, NodeLost(1.0, "a"))
    assert [one.node for one in select(decisions, AddNode)] == ["z"]
    state, decisions = step(rules, state, AddFailed(2.0, "z"))
    assert not select(decisions, AddNode)
    state, decisions = step(rules, state, Tick(8.0))
    assert [one.node for one in select(decisions, AddNode)] == ["z"]
    state, decisions = step(rules, state, Tick(200.0))  # it never answered
    assert state.hosts["z"].retry_s == 205.0


def test_what_survived_on_a_node_that_comes_back_is_moved_and_the_node_is_free() -> None:
    cluster = _cluster(6, 6, hosts=(Host("z", 6, is_ready=True),))
    cluster.send(NodeLost(0.0, "a"))
    assert not select(cluster.send(NodeBack(5.0, "a")), MoveMessages)  # how much survived is not known yet
    decisions = cluster.tick(6.0, a=900, b=0, z=0)
    moved = {one.target: one.count for one in select(decisions, MoveMessages)}
    assert moved == {"b": 450, "z": 450}
    assert [one.node for one in select(decisions, RemoveNode)] == ["a"]
    assert "a" in cluster.state.hosts


def test_a_node_that_comes_back_and_is_needed_is_used_again() -> None:
    cluster = _cluster(6, 6)
    cluster.send(NodeLost(0.0, "a"))
    assert cluster.counts()["b"] == (4, 4)
    assert select(cluster.send(NodeBack(5.0, "a")), UnmarkNode)  # at once: the other is overloaded
    assert cluster.counts() == {"a": (2, 2), "b": (2, 2)}
    cluster = _cluster(9, 9)
    for id in ("s1", "s2", "s3", "s7"):
        cluster.send(Leave(0.0, id))
    cluster.send(NodeLost(0.0, "a"))
    assert not select(cluster.send(NodeBack(5.0, "a")), UnmarkNode)
    assert select(cluster.tick(6.0, a=0, b=0), UnmarkNode)  # when nothing is on it: 8 clients, room for 9


def test_a_node_that_is_lost_while_sessions_move_to_it() -> None:
    rules = Rules(balance_after_s=0.0)
    state = make_state(12, hosts=(Host("z", 12),))
    for at in range(13):
        state, _ = step(rules, state, Join(0.0, f"s{at}", "consumer"))
    state, decisions = step(rules, state, NodeAdded(6.0, "z"))
    assert select(decisions, MoveSession)
    state, _ = step(rules, state, NodeLost(6.1, "z"))
    assert {one.place for one in state.sessions.values()} == {"a"}
    assert state.nodes["z"].status is Status.LOST


def test_a_surplus_goes_to_the_least_load_factor_first() -> None:
    cluster = Cluster(Rules(allowed_length=1000, least_exchange=10), make_state(10, 10, 10))
    decisions = cluster.tick(1.0, a=1600, b=700, c=100)
    moves = {one.target: one.count for one in select(decisions, MoveMessages)}
    assert moves == {"c": 600}  # up to the level of b
    assert select(decisions, MoveMessages)[0].reason.code is Code.SURPLUS
    assert not select(cluster.tick(), MoveMessages)


def test_nothing_is_moved_where_no_queue_has_room() -> None:
    cluster = Cluster(Rules(allowed_length=1000), make_state(10, 10))
    assert not select(cluster.tick(1.0, a=5000, b=1000), MoveMessages)
    assert not select(cluster.tick(1.0, a=1050, b=0), MoveMessages)  # too little


def test_a_starving_queue_pulls_half_at_most() -> None:
    rules = Rules(pull=100, least_exchange=10)
    for length, expected in ((5000, 200), (100, 50), (5, None)):
        readings = {"a": Reading(length), "b": Reading(0, waiting=2)}
        state = replace(make_state(10, 10), sessions={"s": Session("s", "consumer", "a")})
        _, decisions = step(rules, state, Tick(1.0, readings))
        moves = select(decisions, MoveMessages)
        assert [one.count for one in moves] == ([] if expected is None else [expected])
        assert all((one.source, one.target) == ("a", "b") for one in moves)


def test_a_starving_queue_pulls_all_of_a_queue_without_consumers() -> None:
    for length, expected in ((5000, [1000]), (100, [100]), (1, [1]), (0, [])):
        readings = {"a": Reading(length), "b": Reading(0, waiting=2)}
        _, decisions = step(Rules(), make_state(10, 10), Tick(1.0, readings))
        assert [one.count for one in select(decisions, MoveMessages)] == expected


def test_a_saturated_node_gets_no_messages_of_others() -> None:
    rules = Rules(allowed_length=100, least_exchange=1)
    for waiting in (0, 3):
        readings = {"a": Reading(5000), "b": Reading(0, waiting=waiting, is_saturated=True)}
        _, decisions = step(rules, make_state(10, 10), Tick(1.0, readings))
        assert not select(decisions, MoveMessages)


def test_transfers_do_not_go_round_in_circles() -> None:
    rules = Rules(allowed_length=100, least_exchange=1)
    state = make_state(10, 10)
    state, decisions = step(rules, state, Tick(1.0, {"a": Reading(150), "b": Reading(0)}))
    assert select(decisions, MoveMessages)
    state, decisions = step(rules, state, Tick(2.0, {"a": Reading(0, waiting=3), "b": Reading(500)}))
    assert not select(decisions, MoveMessages)
    state, decisions = step(rules, state, MessagesMoved(3.0, "a", "b", 50))
    assert [one.source for one in select(decisions, MoveMessages)] == ["b"]


def test_a_transfer_that_is_not_reported_is_forgotten() -> None:
    rules = Rules(allowed_length=100, least_exchange=1)
    state, _ = step(rules, make_state(10, 10), Tick(1.0, {"a": Reading(150), "b": Reading(0)}))
    assert state.transfers
    state, _ = step(rules, state, Tick(70.0, {"a": Reading(100), "b": Reading(50)}))
    assert not state.transfers
    assert not state.proposals


@pytest.mark.parametrize("seed", range(40))
def test_spreading_moves_every_message_once_to_the_lowest_level(seed: int) -> None:
    draw = np.random.default_rng(seed)
    names = [f"n{at}" for at in range(int(draw.integers(2, 8)))]
    nodes = {name: Node(name, int(draw.integers(1, 20)), length=int(draw.integers(0, 3000))) for name in names}
    limit = None if draw.random() < 0.5 else int(draw.integers(1, 3000))
    count = int(draw.integers(1, 8000))
    moves = spread(State(nodes=nodes), "n0", count, limit)
    given = {move.target: move.count for move in moves}
    assert len(given) == len(moves)
    assert "n0" not in given
    room = sum(max(0, limit - (nodes[name].length or 0)) for name in names[1:]) if limit is not None else count
    assert sum(given.values()) == min(count, room)

    def level(name: str, more: int = 0) -> float:
        return ((nodes[name].length or 0) + given.get(name, 0) + more) / (nodes[name].capacity or 1)

    for name in given:
        if limit is not None:
            assert (nodes[name].length or 0) + given[name] <= limit
        for other in names[1:]:
            full = limit is not None and (nodes[other].length or 0) + given.get(other, 0) >= limit
            # a message less here and one more there would not be more level
            assert full or level(name, -1) <= level(other, 1) + 1e-9


def test_nothing_is_spread_into_a_queue_that_gives_itself() -> None:
    nodes = {name: Node(name, 10, length=0) for name in "abc"}
    state = State(nodes=nodes, transfers={("b", "c"): Transfer(10, "x", 0.0)})
    assert [move.target for move in spread(state, "a", 100, None)] == ["c"]


@pytest.mark.parametrize(
    "options", [{"length": -1}, {"length": 1.5}, {"waiting": -1}, {"capacity": 0}, {"rate_per_s": float("nan")}]
)
def test_readings_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match="Reading"):
        Reading(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [0, -3, 2.5, float("nan"), True])
def test_capacities_that_cannot_be_are_refused(capacity: int) -> None:
    with pytest.raises(InvalidValue, match="capacity of the node 'a' must be a number of clients >= 1"):
        Node("a", capacity)


def test_a_measured_capacity_is_adopted_when_it_is_clearly_another_one() -> None:
    rules = Rules()
    state = State(nodes={"a": Node("a"), "b": Node("b", 7, is_configured=True)})
    for measured, adopted in ((20, 20), (21, 20), (19, 20), (23, 23), (20, 20)):
        state, _ = step(rules, state, Tick(1.0, {name: Reading(0, capacity=measured) for name in "ab"}))
        assert (state.nodes["a"].capacity, state.nodes["b"].capacity) == (adopted, 7)
