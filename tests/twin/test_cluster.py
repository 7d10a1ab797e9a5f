"""The clustered queue in virtual time: no message is lost or made, and rates are what they should be."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.cluster.policy import (
    CapacityEstimator,
    Host,
    MoveMessages,
    MoveSession,
    Node,
    Rules,
    measure_imbalance,
)
from flyball.errors import InvalidValue
from flyball.twin.cluster import ClientModel, NodeModel, TwinCluster


def _nodes(*capacities: int) -> list[Node]:
    return [Node(name, capacity, is_configured=True) for name, capacity in zip("abcdef", capacities, strict=False)]


@pytest.mark.parametrize("seed", range(6))
def test_no_message_is_lost_or_made(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rules = Rules(shrink_after_s=5.0, balance_after_s=1.0, allowed_length=200, least_exchange=10, add_s=2.0)
    cluster = TwinCluster(rules, _nodes(6, 6), [Host("x", 6), Host("y", 6, is_ready=True)], step_s=0.25)
    for _ in range(120):
        chance = draw.random()
        if chance < 0.45 or not cluster.state.sessions:
            cluster.join("producer" if draw.random() < 0.4 else "consumer")
        elif chance < 0.8:
            cluster.leave(str(draw.choice(list(cluster.state.sessions))))
        elif cluster.state.nodes and chance < 0.87:
            cluster.lose(str(draw.choice(sorted(cluster.state.nodes))))
        elif cluster.state.nodes:
            cluster.restore(str(draw.choice(sorted(cluster.state.nodes))))
        cluster.run(1.0)
        assert cluster.published == pytest.approx(cluster.delivered + cluster.length, abs=1e-3)
        assert all(length >= -1e-6 for length in cluster.trace[-1].lengths.values())
    for name in list(cluster.state.nodes):
        cluster.restore(name)
    cluster.run(60.0)
    if cluster.state.members:
        assert all(cluster.state.nodes[one.node].is_member for one in cluster.state.sessions.values())


def test_a_node_is_the_limit_and_length_makes_it_slower() -> None:
    fast = TwinCluster(Rules(), _nodes(12), sessions={"a": (10, 20)})
    fast.run(10.0)
    assert fast.trace[-1].delivered_per_s == pytest.approx(1900.0)
    slow = TwinCluster(Rules(), _nodes(12), node=NodeModel(half_length=1000.0), sessions={"a": (12, 20)})
    slow.run(60.0)
    assert slow.trace[-1].delivered_per_s < 0.5 * slow.trace[0].delivered_per_s


def test_exchange_costs_and_moves_of_sessions_do_not() -> None:
    client, node = ClientModel(800.0, 440.0), NodeModel(4200.0)
    sessions = {"a": (3, 2), "b": (1, 6)}
    rates = {}
    for name, kinds in (("nothing", ()), ("exchange", ("exchange",)), ("moves", ("exchange", "balance"))):
        rules = Rules(auto=frozenset(kinds), allowed_length=500)  # type: ignore[arg-type]
        cluster = TwinCluster(rules, _nodes(12, 12), client=client, node=node, sessions=sessions)
        cluster.run(60.0)
        rates[name] = cluster.trace[-1].delivered_per_s
        moved = [one for _, one in cluster.decisions if isinstance(one, MoveSession)]
        assert len(moved) == (3 if name == "moves" else 0)
        assert bool([one for _, one in cluster.decisions if isinstance(one, MoveMessages)]) == (name != "nothing")
    assert rates["nothing"] < 0.6 * 3200.0
    assert 1.1 * rates["nothing"] < rates["exchange"] < 3000.0
    assert rates["moves"] == pytest.approx(3200.0, rel=0.03)


def test_a_session_pauses_while_it_moves() -> None:
    cluster = TwinCluster(
        Rules(balance_after_s=0.0, move_s=3.0, moves_at_once=99), _nodes(12, 12), sessions={"a": (4, 8)}
    )
    cluster.run(2.0)
    assert cluster.trace[-1].published_per_s == pytest.approx(2 * 475.0)  # two of four producers pause
    cluster.run(4.0)
    assert cluster.trace[-1].published_per_s == pytest.approx(4 * 475.0)
    assert measure_imbalance(cluster.state).is_tolerable


def test_the_measured_capacity_is_the_knee() -> None:
    cluster = TwinCluster(Rules(), [Node("a")], estimator=CapacityEstimator())
    for _ in range(2):
        for role in ("producer", "consumer", "consumer"):
            cluster.join(role)
        cluster.run(15.0)
    assert cluster.state.nodes["a"].capacity is None
    for _ in range(3):
        for role in ("producer", "consumer", "consumer"):
            cluster.join(role)  # type: ignore[arg-type]
    cluster.run(20.0)
    assert cluster.state.nodes["a"].capacity == 12


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_models_that_cannot_be_are_refused(value: float) -> None:
    with pytest.raises(InvalidValue, match=r"NodeModel.operations_per_s must be a number > 0"):
        NodeModel(operations_per_s=value)
    with pytest.raises(InvalidValue, match=r"ClientModel.publish_per_s must be a number >= 0"):
        ClientModel(publish_per_s=value - 1.0)
