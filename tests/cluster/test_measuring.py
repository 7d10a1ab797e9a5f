"""Capacities from what clients report, on nodes whose knee is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.cluster.policy.capacity import CapacityEstimator
from flyball.cluster.policy.events import Reading
from flyball.cluster.policy.management import Client, Observation, Picture, begin, manage
from flyball.cluster.policy.measuring import Measuring, judge_node, measure
from flyball.cluster.policy.rules import Rules
from flyball.cluster.policy.state import Node, Role
from flyball.cluster.policy.work import Work
from flyball.cluster.records import decode_report, encode_report
from flyball.cluster.work_meter import WorkMeter

ESTIMATOR = CapacityEstimator()
PER_CLIENT = 300.0
"""Messages a second that each client asks for."""


class Clients:
    """Clients that report every second, on nodes that serve so many messages a second."""

    def __init__(self, nodes: Mapping[str, float]) -> None:
        self.nodes, self.time_s = nodes, 0.0
        self.reports: dict[str, Client] = {}

    def join(self, role: Role, node: str | None = None) -> str:
        id = f"{role}-{len(self.reports)}"
        self.reports[id] = Client(role, node, work=Work())
        return id

    def work(self, seconds: float = 1.0) -> None:
        """All clients of a node get the same part of what they ask for; latency shows who waits."""
        self.time_s += seconds
        for name, able in self.nodes.items():
            here = [id for id, client in self.reports.items() if client.node == name]
            demand = PER_CLIENT * len(here) / able if here else 0.0
            latency_s = 0.001 if demand < 0.95 else 0.02 * max(1.0, demand) ** 2
            each = round(PER_CLIENT * min(1.0, 1.0 / demand) * seconds) if here else 0
            for id in here:
                client, work = self.reports[id], self.reports[id].work
                assert work is not None
                if client.role == "producer":
                    work = replace(
                        work,
                        confirmed=work.confirmed + each,
                        batches=work.batches + each,
                        waited_s=work.waited_s + each * latency_s,
                    )
                else:
                    work = replace(work, delivered=work.delivered + each, busy_s=work.busy_s + seconds)
                self.reports[id] = replace(client, work=replace(work, time_s=self.time_s))


def run(clients: Clients, measuring: Measuring, seconds: int) -> Measuring:
    for _ in range(seconds):
        clients.work()
        measuring = measure(ESTIMATOR, measuring, clients.reports, {}, (), clients.time_s)
    return measuring


def fill(clients: Clients, name: str, producers: int, consumers: int) -> None:
    for _ in range(producers):
        clients.join("producer", name)
    for _ in range(consumers):
        clients.join("consumer", name)


def test_the_capacity_follows_from_reports() -> None:
    clients, measuring = Clients({"a": 3600.0}), Measuring()
    fill(clients, "a", 2, 4)
    assert judge_node(ESTIMATOR, measuring, "a", None).text == (
        "0 of 12 samples at low load; 0 of 12 samples at full load"
    )
    measuring = run(clients, measuring, 8)
    found = judge_node(ESTIMATOR, measuring, "a", None)
    assert found.capacity is None
    assert found.rate_per_s == pytest.approx(1200.0)
    assert found.text == (
        "7 of 12 samples at low load, ready in about 5 s; 0 of 12 samples at full load: "
        "it serves more than 6 clients"
    )
    measuring = run(clients, measuring, 20)
    fill(clients, "a", 4, 8)
    measuring = run(clients, measuring, 8)
    assert judge_node(ESTIMATOR, measuring, "a", None).text == "7 of 12 samples at full load, ready in about 5 s"
    measuring = run(clients, measuring, 10)
    found = judge_node(ESTIMATOR, measuring, "a", None)
    assert found.capacity == 12
    assert found.is_saturated
    assert judge_node(ESTIMATOR, measuring, "a", 30).capacity == 30  # configured


def test_unequal_nodes_get_clients_in_proportion() -> None:
    """Both begin with equal shares; when capacities are known, sessions move."""
    clients, measuring = Clients({"a": 3600.0, "b": 1800.0}), Measuring()
    rules = Rules(min_nodes=2, max_nodes=2, balance_after_s=1.0)
    picture: Picture = begin({name: Node(name, is_permanent=True) for name in clients.nodes})
    for second in range(240):
        if len(clients.reports) < 24 and second % 6 == 0:
            clients.join("producer" if len(clients.reports) % 3 == 0 else "consumer")
        clients.work()
        measuring = measure(ESTIMATOR, measuring, clients.reports, {}, (), clients.time_s)
        found = {name: judge_node(ESTIMATOR, measuring, name, None) for name in clients.nodes}
        readings = {name: Reading(0, 0, one.rate_per_s, one.capacity) for name, one in found.items()}
        seen = Observation(clients.time_s, dict(clients.reports), readings)
        picture, _ = manage(rules, picture, seen, lost_after_s=5.0)
        for id, session in picture.state.sessions.items():
            if session.place != clients.reports[id].node:
                clients.reports[id] = replace(clients.reports[id], node=session.place)
        if second == 60:
            assert not picture.state.knows_capacity
            shares = picture.state.consumers
            assert abs(shares["a"] - shares["b"]) <= 1
    state = picture.state
    assert state.nodes["a"].capacity == pytest.approx(12, abs=1)
    assert state.nodes["b"].capacity == pytest.approx(6, abs=1)
    assert state.producers == pytest.approx({"a": 16 / 3, "b": 8 / 3}, abs=1)
    assert state.consumers == pytest.approx({"a": 32 / 3, "b": 16 / 3}, abs=1)


@pytest.mark.parametrize("sizes", [(1, 50), (50, 1)])
def test_batches_of_another_size_are_no_sign_of_a_full_node(sizes: tuple[int, int]) -> None:
    """A batch takes 1 ms and 0.1 ms for each message, a producer sends 300 messages a second."""
    measuring, work = Measuring(), Work()
    for second in range(60):
        size = sizes[second // 30]
        batches = 300 // size
        work = Work(
            work.time_s + 1.0,
            work.confirmed + batches * size,
            work.batches + batches,
            work.waited_s + batches * (0.001 + 0.0001 * size),
        )
        clients = {"p": Client("producer", "a", work=work)}
        measuring = measure(ESTIMATOR, measuring, clients, {}, (), work.time_s)
        assert not judge_node(ESTIMATOR, measuring, "a", None).is_saturated
    assert measuring.estimates["a"].node_per_s.samples == 0


def test_no_sample_while_messages_move_or_a_client_is_new() -> None:
    clients, measuring = Clients({"a": 3600.0}), Measuring()
    fill(clients, "a", 2, 4)
    measuring = run(clients, measuring, 5)
    before = measuring.estimates
    clients.work()
    measuring = measure(ESTIMATOR, measuring, clients.reports, {}, {"a"}, clients.time_s)
    assert measuring.estimates == before
    clients.join("consumer", "a")
    clients.work()
    measuring = measure(ESTIMATOR, measuring, clients.reports, {}, (), clients.time_s)
    assert measuring.estimates == before
    clients.work()
    measuring = measure(ESTIMATOR, measuring, clients.reports, {}, (), clients.time_s)
    assert measuring.estimates != before


def test_reports_that_are_seen_twice_count_once() -> None:
    clients, measuring = Clients({"a": 3600.0}), Measuring()
    fill(clients, "a", 2, 4)
    measuring = run(clients, measuring, 5)
    again = measure(ESTIMATOR, measuring, clients.reports, {}, (), clients.time_s)
    assert again.estimates == measuring.estimates


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.builds(
                Work,
                time_s=st.floats(0.0, 1e6),
                confirmed=st.integers(0, 10**9),
                batches=st.integers(0, 10**9),
                waited_s=st.floats(0.0, 1e6),
                delivered=st.integers(0, 10**9),
                busy_s=st.floats(0.0, 1e6),
            ),
        ),
        max_size=20,
    )
)
def test_no_report_makes_a_negative_or_infinite_estimate(reports: list[tuple[str | None, Work]]) -> None:
    """Clients that move, start again, or report nonsense."""
    measuring = Measuring()
    for now_s, (node, work) in enumerate(reports):
        clients = {"p": Client("producer", node, work=work), "c": Client("consumer", node, work=work)}
        measuring = measure(ESTIMATOR, measuring, clients, {}, (), float(now_s))
        for name in "ab":
            found = judge_node(ESTIMATOR, measuring, name, None)
            assert found.capacity is None or found.capacity >= 1
            Reading(0, 0, found.rate_per_s, found.capacity, found.is_saturated)  # refuses what is impossible


def test_a_meter_counts_busy_time_and_survives_the_store() -> None:
    now_s = 10.0
    meter = WorkMeter(lambda: now_s)
    meter.add_confirmed(20, 0.5)
    meter.add_confirmed(0, 9.0)  # nothing was confirmed: how long that took says nothing
    meter.set_busy(True)
    now_s = 12.0
    meter.add_delivered(3)
    assert meter.read() == Work(12.0, 20, 1, 0.5, 3, 2.0)
    meter.set_busy(False)
    now_s = 15.0
    assert meter.read().busy_s == 2.0
    client = Client("consumer", "a", work=meter.read())
    assert decode_report(encode_report(client)).work == client.work
    assert client == replace(client, work=None)  # a report that says only this changes nothing
