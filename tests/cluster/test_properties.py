"""What holds over any sequence of events, carried out late, in any order and not always."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flyball.cluster.policy.balancing import measure_imbalance
from flyball.cluster.policy.decisions import (
    AddNode,
    Elect,
    MarkNode,
    MoveMessages,
    MoveSession,
    RemoveNode,
    UnmarkNode,
)
from flyball.cluster.policy.events import Join, Leave, Resume, Tick
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Host, Mark, Node, State, Status
from flyball.cluster.policy.step import step
from tests.cluster.carry_out import Cluster, HostileWorld, RandomWorld, make_state, select

SEEDS = 14


def _world(seed: int, rules: Rules | None = None) -> RandomWorld:
    draw = np.random.default_rng(seed)
    nodes = int(draw.integers(1, 6))
    equal = draw.random() < 0.3
    capacities = [int(c) for c in (np.full(nodes, 6) if equal else draw.integers(1, 12, nodes))]
    hosts = [
        Host(f"h{at}", int(draw.integers(1, 12)) if draw.random() < 0.7 else None, is_ready=draw.random() < 0.4)
        for at in range(int(draw.integers(0, 5)))
    ]
    rules = rules or Rules(
        shrink_after_s=float(draw.choice([0.0, 10.0])),
        balance_after_s=float(draw.choice([0.0, 3.0])),
        shrink_below=float(draw.choice([0.5, 0.8, 1.0])),
        min_nodes=int(draw.integers(1, 3)),
        moves_at_once=int(draw.integers(1, 5)),
    )
    return RandomWorld(rules, make_state(*capacities, hosts=hosts), draw)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_sequence_of_events(seed: int) -> None:
    world = _world(seed)
    for _ in range(300):
        before, event, after, decisions = world.advance()
        for elected in select(decisions, Elect):
            _check_election(before, after, elected)
        for move in select(decisions, MoveSession):
            assert after.nodes[move.target].is_member, "a session moves to a marked or dead node"
        for removed in select(decisions, RemoveNode):
            assert not [one for one in after.sessions.values() if removed.node in (one.node, one.target)]
            was = before.nodes.get(removed.node)
            now = [one.node for one in select(decisions, MarkNode)]
            assert removed.node in now or (was is not None and was.mark is not None)
        for marked in select(decisions, MarkNode):
            if marked.mark is Mark.SHRINK and after.load is not None:
                assert after.load <= 1.0, "a removal overloads"
                assert len(after.members) >= world.rules.min_nodes
        _check_consistency(after, event.now_s)


def _check_election(before: State, after: State, elected: Elect) -> None:
    assert after.nodes[elected.node].is_member, "a client on a marked or dead node"
    if elected.session in before.sessions:
        return
    clients = after.producers[elected.node] + after.consumers[elected.node]
    room = [
        node
        for node in after.members
        if after.producers[node.name] + after.consumers[node.name] < after.capacities[node.name]
    ]
    assert clients <= after.capacities[elected.node] or not room, "an overload that another choice avoids"


def _check_consistency(state: State, now_s: float) -> None:
    names = set(state.nodes)
    assert not names & set(state.hosts)
    for session in state.sessions.values():
        assert session.target is None or session.target in names
        assert (session.target is None) == (session.change is None)
        if session.started_s is not None:
            assert session.target is not None
            assert session.started_s <= now_s
    for source, target in state.transfers:
        assert source in names
        assert target in names
    assert len(state.finished) <= 50
    assert len(state.refused) <= 100


@pytest.mark.parametrize("seed", range(SEEDS))
def test_afterwards_everybody_is_served_within_one_client_of_the_optimum(seed: int) -> None:
    world = _world(1000 + seed)
    for _ in range(250):
        world.advance()
    world.settle()
    state = world.state
    assert not state.moving
    assert not state.transfers
    assert not state.proposals
    if state.members:
        assert all(state.nodes[session.node].is_member for session in state.sessions.values())
        assert measure_imbalance(state).is_tolerable
    else:
        assert not state.hosts
    if state.load is not None and state.load > 1.0:
        assert not state.hosts, "a free host and an overloaded cluster"
    assert not [node for node in state.nodes.values() if node.mark is Mark.SHRINK]
    assert not [node for node in state.nodes.values() if node.status is Status.ADDING]


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_at_rest_nothing_is_decided(seed: int) -> None:
    world = _world(2000 + seed)
    for _ in range(150):
        world.advance()
    world.settle()
    for at in range(50):
        world.state, decisions = step(world.rules, world.state, Tick(world.now_s + 30.0 * at))
        assert not decisions


def test_the_same_events_give_the_same_decisions() -> None:
    for seed in range(8):
        world = _world(5000 + seed)
        for _ in range(100):
            before, event, after, decisions = world.advance()
            assert step(world.rules, before, event) == (after, decisions)


@pytest.mark.parametrize("mode", ["advise", "shadow"])
@pytest.mark.parametrize("seed", range(10))
def test_without_the_mode_on_only_clients_that_join_are_served(seed: int, mode: str) -> None:
    world = _world(3000 + seed)
    world.rules = replace(world.rules, mode=mode)  # type: ignore[arg-type]
    start = world.state
    acts = (AddNode, MarkNode, UnmarkNode, RemoveNode, MoveSession)
    for _ in range(200):
        _, _, _, decisions = world.advance()
        assert not [one for one in decisions if isinstance(one, acts)]
    assert set(world.state.nodes) == set(start.nodes)


def test_a_load_near_full_does_not_flap() -> None:
    """One client comes and goes at the moment of growth: one node is added, and none is removed."""
    cluster = Cluster(Rules(shrink_after_s=0.0), make_state(12, hosts=[Host("z", 12, is_ready=True)]))
    cluster.join("producer", 4)
    cluster.join("consumer", 8)
    for _ in range(200):
        cluster.join("producer")
        cluster.tick(5.0)
        cluster.send(Leave(cluster.now_s, f"s{cluster.joined}"))
        cluster.tick(5.0)
    assert len(select(cluster.log, AddNode)) == 1
    assert not select(cluster.log, MarkNode)


@pytest.mark.parametrize("seed", range(6))
def test_between_shrinking_and_growing_clients_must_come(seed: int) -> None:
    """Without repair: from a mark to the next growth, the clients grow by the band at least."""
    draw = np.random.default_rng(seed)
    hosts = [Host(f"h{at}", 10, is_ready=True) for at in range(6)]
    cluster = Cluster(Rules(shrink_after_s=0.0, balance_after_s=0.0), make_state(10, 10, hosts=hosts))
    least: float | None = None
    for _ in range(600):
        if draw.random() < 0.5 + 0.3 * np.sin(cluster.now_s / 40.0) or not cluster.state.sessions:
            decisions = cluster.join("producer" if draw.random() < 0.3 else "consumer")
        else:
            decisions = cluster.send(Leave(cluster.now_s, str(draw.choice(list(cluster.state.sessions)))))
        cluster.now_s += 1.0
        if select(decisions, MarkNode):
            least = 0.2 * cluster.state.capacity
            clients = cluster.state.clients
        elif [one for one in decisions if isinstance(one, AddNode | UnmarkNode)]:
            assert least is None or cluster.state.clients - clients >= least
            least = None
    assert select(cluster.log, AddNode)
    assert select(cluster.log, MarkNode)


def test_without_unlucky_leaves_nothing_moves() -> None:
    """Joins alone keep equal nodes balanced: elections never have to be corrected."""
    for seed in range(20):
        draw = np.random.default_rng(seed)
        cluster = Cluster(Rules(balance_after_s=0.0), make_state(*[40] * int(draw.integers(2, 7))))
        for _ in range(60):
            cluster.join("producer" if draw.random() < 0.4 else "consumer")
        assert not select(cluster.log, MoveSession)


def test_thousands_of_nodes_and_sessions() -> None:
    cluster = Cluster(
        Rules(balance_after_s=0.0, shrink_after_s=0.0, moves_at_once=10_000), make_state(*[2] * 2000)
    )
    for at in range(40):
        cluster.join("producer" if at % 3 == 0 else "consumer")
    assert len({session.node for session in cluster.state.sessions.values()}) > 20
    cluster.send(Tick(1.0))
    assert measure_imbalance(cluster.state).is_tolerable


def test_an_event_twice_asks_for_nothing_twice() -> None:
    for seed in range(20):
        world = _world(4000 + seed)
        for _ in range(100):
            _, event, after, _ = world.advance()
            if isinstance(event, Join):
                continue
            again, decisions = step(world.rules, after, event)
            repeated = [one for one in decisions if isinstance(one, AddNode | MoveSession)]
            started = {one.id for one in after.moving if one.started_s is not None}
            assert not [one for one in repeated if isinstance(one, MoveSession) and one.session in started]
            assert {one.node for one in repeated if isinstance(one, AddNode)} <= set(after.hosts)
            assert set(again.sessions) == set(after.sessions)


def test_the_mean_stands_for_a_capacity_that_is_not_known() -> None:
    state = State(nodes={"a": Node("a", 12), "b": Node("b", 6), "c": Node("c")})
    assert state.capacities == {"a": 12, "b": 6, "c": 9}
    unknown = State(nodes={"a": Node("a"), "b": Node("b")}, hosts={"z": Host("z")})
    assert unknown.load is None
    cluster = Cluster(Rules(auto=frozenset(Kind)), unknown)
    cluster.join("producer", 50)
    cluster.tick(1000.0)
    assert not select(cluster.log, AddNode)
    assert cluster.counts() == {"a": (25, 0), "b": (25, 0)}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_hostile_world(seed: int) -> None:
    """Whatever operators, clocks and reports do: nothing vanishes or acts against the mode, and all are served."""
    draw = np.random.default_rng(6000 + seed)
    capacities = [None if draw.random() < 0.3 else int(draw.integers(1, 12)) for _ in range(draw.integers(0, 6))]
    hosts = [Host(f"h{at}", capacities[0] if capacities else 5, is_ready=at % 2 == 0) for at in range(seed % 4)]
    rules = Rules(
        shrink_after_s=0.0,
        balance_after_s=float(draw.choice([0.0, 3.0])),
        shrink_below=float(draw.choice([0.0, 0.8, 1.0])),
        allowed_length=int(draw.choice([0, 100, 10_000])),
        least_exchange=int(draw.choice([1, 100])),
        drain_at_once=bool(draw.random() < 0.8),
        max_nodes=int(draw.integers(3, 20)),
    )
    state = make_state(*capacities, hosts=hosts)
    names = {*state.nodes, *state.hosts}
    world = HostileWorld(rules, state, draw)
    for _ in range(150):
        _, event, after, decisions = world.advance()
        assert {*after.nodes, *after.hosts} == names
        _check_consistency(after, max(event.now_s, 1e9))
        assert all(after.nodes[one.node].is_member for one in select(decisions, Elect))
        for move in select(decisions, MoveSession):
            assert after.nodes[move.target].is_member
            assert move.source != move.target
        for shift in select(decisions, MoveMessages):
            assert shift.count > 0
            assert shift.source != shift.target
        acts = AddNode | MarkNode | RemoveNode | MoveSession | MoveMessages
        assert world.rules.mode == "on" or not [one for one in decisions if isinstance(one, acts)]
    world.rules = replace(rules, mode="on", auto=frozenset(Kind), drain_at_once=True)
    world.now_s += 10_000.0
    for name in world.state.drains:
        world.state, _ = step(world.rules, world.state, Resume(world.now_s, name))
    world.settle(80)
    assert not world.state.moving
    assert not world.state.proposals
    if world.state.members:
        assert all(world.state.nodes[one.node].is_member for one in world.state.sessions.values())
        assert measure_imbalance(world.state).is_tolerable
