"""From what clients report to the capacities of their nodes. Pure.

A client reports totals with its own clock; the difference of two reports is its rates. A node's sample is the sum
over its clients, taken when one of them has reported anew. None is taken while messages move to or from the node,
which costs it work that is not its clients', or while a client of it has not reported twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flyball.cluster.policy.capacity import CapacityEstimator, CapacitySample, CapacityState
from flyball.cluster.policy.management import Client
from flyball.cluster.policy.work import Work


@dataclass(frozen=True, slots=True)
class ClientRates:
    """One client at one node; `latency_s` None: nothing was confirmed."""

    role: str
    node: str
    work: Work
    published_per_s: float
    delivered_per_s: float
    latency_s: float | None
    message_wait_s: float | None
    busy: float


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What is known of a node: `capacity` None while there is no estimate, and `text` says how far it is."""

    capacity: int | None
    text: str
    rate_per_s: float | None
    is_saturated: bool


@dataclass(frozen=True)
class Measuring:
    """What was learnt so far."""

    estimates: Mapping[str, CapacityState] = field(default_factory=dict)
    works: Mapping[str, tuple[str, Work]] = field(default_factory=dict)
    """The last report of each client, and the node it was at."""
    rates: Mapping[str, ClientRates] = field(default_factory=dict)
    samples: Mapping[str, CapacitySample] = field(default_factory=dict)
    """The last one of each node."""


def measure(
    estimator: CapacityEstimator,
    measuring: Measuring,
    clients: Mapping[str, Client],
    lengths: Mapping[str, int | None],
    moving: Iterable[str],
    now_s: float,
) -> Measuring:
    """Take in the clients' newest reports. `lengths`: of the queues; `moving`: nodes whose messages move."""
    rates: dict[str, ClientRates] = {}
    works: dict[str, tuple[str, Work]] = {}
    fresh: set[str] = set()
    for id, client in clients.items():
        if client.node is None or client.work is None:
            continue
        known = measuring.works.get(id)
        if known is None or known[0] != client.node or client.work.time_s < known[1].time_s:
            works[id] = (client.node, client.work)  # it joined, moved or was started again
            continue
        found = _find_rates(client, client.node, known[1], client.work)
        if found is None:
            works[id] = known
            if id in measuring.rates:
                rates[id] = measuring.rates[id]
        else:
            works[id], rates[id] = (client.node, client.work), found
            fresh.add(client.node)
    estimates, samples = dict(measuring.estimates), dict(measuring.samples)
    for name in sorted(fresh - set(moving)):
        here = {id: client for id, client in clients.items() if client.node == name}
        if all(id in rates for id in here):
            sample = _add_up([rates[id] for id in here], lengths.get(name), now_s)
            estimates[name] = estimator.update(estimates.get(name, CapacityState()), sample)
            samples[name] = sample
    return Measuring(estimates, works, rates, samples)


def judge_node(
    estimator: CapacityEstimator, measuring: Measuring, name: str, configured: int | None
) -> NodeCapacity:
    """The capacity of a node as configured or measured; a saturated one is known as such with its capacity."""
    state, sample = measuring.estimates.get(name, CapacityState()), measuring.samples.get(name)
    estimate = estimator.capacity(state, configured)
    capacity = None if estimate.value is None else max(1, round(estimate.value))
    measured = estimator.capacity(state).value is not None
    return NodeCapacity(
        capacity,
        estimate.text,
        None if sample is None else sample.delivered_per_s,
        measured and sample is not None and estimator.is_saturated(state, sample),
    )


def _find_rates(client: Client, node: str, before: Work, after: Work) -> ClientRates | None:
    """None: it has not reported anew."""
    span_s = after.time_s - before.time_s
    if span_s <= 0.0:
        return None
    batches, confirmed = after.batches - before.batches, max(0, after.confirmed - before.confirmed)
    waited_s = after.waited_s - before.waited_s
    return ClientRates(
        client.role,
        node,
        after,
        confirmed / span_s,
        max(0, after.delivered - before.delivered) / span_s,
        waited_s / batches if batches > 0 else None,
        waited_s / confirmed if confirmed > 0 else None,
        min(1.0, max(0.0, after.busy_s - before.busy_s) / span_s),
    )


def _add_up(rates: list[ClientRates], length: int | None, now_s: float) -> CapacitySample:
    consumers = [one for one in rates if one.role == "consumer"]
    return CapacitySample(
        now_s,
        len(rates) - len(consumers),
        len(consumers),
        sum(one.published_per_s for one in rates),
        sum(one.delivered_per_s for one in rates),
        _mean((one.latency_s, one.published_per_s) for one in rates),
        length,
        sum(one.busy for one in consumers) / len(consumers) if consumers else None,
        _mean((one.message_wait_s, one.published_per_s) for one in rates),
    )


def _mean(weighted: Iterable[tuple[float | None, float]]) -> float | None:
    """Of the values that are known, by their weights."""
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
