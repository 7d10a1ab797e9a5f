"""A round of the manager: from what it observes to decisions, and the record that it leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flyball.cluster.policy.decisions import Decision, Elect, MoveMessages, MoveSession, Refuse
from flyball.cluster.policy.events import Reading
from flyball.cluster.policy.management import Client, Observation, Picture, begin, manage
from flyball.cluster.policy.rules import Rules
from flyball.cluster.policy.state import Mark, Node, State, Status
from flyball.cluster.policy.succession import take_over
from flyball.cluster.records import ClusterRecord, add_changes, add_decisions, decode_record, encode_record
from tests.cluster.carry_out import select

NODES = {name: Node(name, 10, True, length=None, is_permanent=True) for name in "ab"}
RULES = Rules(min_nodes=2, max_nodes=2, balance_after_s=0.0)
BOTH: dict[str, Reading | None] = {"a": Reading(0), "b": Reading(0)}


def observe(
    picture: Picture,
    now_s: float,
    clients: Mapping[str, Client],
    nodes: Mapping[str, Reading | None] | None = None,
    drains: frozenset[str] = frozenset(),
) -> tuple[Picture, tuple[Decision, ...]]:
    return manage(RULES, picture, Observation(now_s, clients, nodes, (), drains), lost_after_s=2.0)


def test_clients_join_are_where_they_say_and_leave() -> None:
    clients = {"p": Client("producer"), "q": Client("producer")}
    picture, decisions = observe(begin(NODES), 0.0, clients)
    assert {one.session: one.node for one in select(decisions, Elect)} == {"p": "a", "q": "b"}
    picture, decisions = observe(picture, 1.0, {"p": Client("producer", "a"), "q": Client("producer", "b")}, BOTH)
    assert not decisions
    picture, _ = observe(picture, 2.0, {"q": Client("producer", "b")})
    assert set(picture.state.sessions) == {"q"}


def test_a_node_is_lost_after_a_silence_and_its_clients_move_once() -> None:
    clients = {"p": Client("producer", "a"), "q": Client("producer", "b")}
    picture, _ = observe(begin(NODES), 0.0, clients, BOTH)
    silent: dict[str, Reading | None] = {"a": Reading(0), "b": None}
    picture, decisions = observe(picture, 1.0, clients, silent)
    assert not decisions  # one missing answer is no loss
    picture, decisions = observe(picture, 2.0, clients, BOTH)
    picture, decisions = observe(picture, 3.0, clients, silent)
    picture, decisions = observe(picture, 4.9, clients, silent)
    assert not decisions
    picture, decisions = observe(picture, 5.0, clients, silent)
    assert [(one.session, one.target) for one in select(decisions, MoveSession)] == [("q", "a")]
    assert picture.state.nodes["b"].status is Status.LOST
    picture, decisions = observe(picture, 5.2, clients, silent)
    assert not select(decisions, MoveSession)
    clients = {"p": Client("producer", "a"), "q": Client("producer", "a")}
    picture, _ = observe(picture, 5.4, clients)
    assert picture.state.sessions["q"].node == "a"
    assert not picture.state.moving


def test_what_survived_is_moved_before_a_node_serves_again() -> None:
    clients = {"p": Client("producer", "a")}
    picture, _ = observe(begin(NODES), 0.0, clients, BOTH)
    picture, _ = observe(picture, 1.0, clients, {"a": Reading(0), "b": None})
    picture, _ = observe(picture, 3.0, clients, {"a": Reading(0), "b": None})
    picture, decisions = observe(picture, 4.0, clients, {"a": Reading(0), "b": Reading(7)})
    assert picture.state.nodes["b"].mark is Mark.RETURNED
    assert [(one.source, one.target, one.count) for one in select(decisions, MoveMessages)] == [("b", "a", 7)]


def test_nobody_is_sent_to_a_node_that_was_lost_in_the_same_round() -> None:
    silent: dict[str, Reading | None] = {"a": None, "b": Reading(0)}
    picture, _ = observe(begin(NODES), 0.0, {}, silent)
    picture, decisions = observe(picture, 2.0, {"p": Client("producer")}, silent)
    assert [one.node for one in select(decisions, Elect)] == ["b"]
    everything_silent: dict[str, Reading | None] = {"a": None, "b": None}
    picture, _ = observe(picture, 3.0, {}, everything_silent)
    picture, decisions = observe(picture, 5.0, {"q": Client("consumer")}, everything_silent)
    assert [one.session for one in select(decisions, Refuse)] == ["q"]


def test_a_manager_without_a_record_takes_the_picture_from_the_clients() -> None:
    clients = {name: Client("producer", "b") for name in ("p", "q")}
    picture, decisions = observe(begin(NODES), 0.0, clients)
    assert {one.node for one in picture.state.sessions.values()} == {"b"}
    assert not select(decisions, Elect)


def test_a_successor_goes_on_from_the_record() -> None:
    clients = {"p": Client("producer", "a"), "q": Client("producer", "a"), "r": Client("consumer", "a")}
    picture, decisions = observe(begin(NODES), 0.0, clients, BOTH)
    moves = {one.session: one.target for one in select(decisions, MoveSession)}
    assert list(moves.values()) == ["b"]
    record = add_decisions(add_changes(ClusterRecord(picture), State(), 5.0), decisions, 5.0)
    read = decode_record(json.loads(json.dumps(encode_record(record))))
    assert read.history == record.history
    assert read.history[-1].action.startswith("move ")
    successor = take_over(read.picture, {**NODES, "c": Node("c", 10, True)}, 1000.0)
    assert set(successor.state.nodes) == {"a", "b"}  # c, which was configured since, is a free host
    moved, decisions = observe(successor, 1000.1, clients)
    assert {one.id: one.target for one in moved.state.moving} == moves  # the move goes on, and is not begun twice
    assert not select(decisions, MoveSession)


def test_a_drained_node_is_marked_and_used_again_after_it() -> None:
    clients = {"p": Client("producer", "a"), "q": Client("producer", "b")}
    picture, _ = observe(begin(NODES), 0.0, clients, BOTH)
    picture, decisions = observe(picture, 1.0, clients, BOTH, frozenset("b"))
    assert picture.state.nodes["b"].mark is Mark.MAINTENANCE
    assert [one.session for one in select(decisions, MoveSession)] == ["q"]
    picture, _ = observe(picture, 2.0, {**clients, "q": Client("producer", "a")}, BOTH, frozenset("b"))
    picture, _ = observe(picture, 3.0, {**clients, "q": Client("producer", "a")}, BOTH)
    assert picture.state.nodes["b"].is_member
