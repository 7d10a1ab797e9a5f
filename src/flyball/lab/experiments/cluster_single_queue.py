"""Cluster: one queue, its length, its clients and its limit (figures 4 to 7 of Bouchenak et al.).

The twin's node with the document's findings as its model: half as fast at 1,500 messages, a producer twice as fast
as a consumer.
"""

from __future__ import annotations

from typing import Any

from flyball.cluster.policy import Node, Rules
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, SHADE, new_figure
from flyball.twin.cluster import ClientModel, NodeModel, TwinCluster

NODE = NodeModel(operations_per_s=3800.0, half_length=1500.0)
CLIENT = ClientModel(publish_per_s=475.0, consume_per_s=237.5)
ALONE = Rules(mode="advise")


def run(context: ExperimentContext) -> Report:
    seconds = 30.0 if context.quick else 90.0
    figure, axes = new_figure(rows=3, row_height_in=2.4)
    lengths, rates = _fill_and_drain()
    axes[0].plot(lengths, rates, color=ONE_STEP)
    axes[0].set_xlabel("messages that wait (figure 4)")
    axes[0].set_ylabel("delivered, 1/s")
    stable: dict[str, Any] = {}
    rows: list[tuple[object, ...]] = []
    for consumers, colour in ((1, FREE_RUN), (2, ONE_STEP), (3, SHADE)):
        cluster = _cluster(1, consumers)
        cluster.run(seconds)
        growth = (cluster.length - cluster.trace[0].lengths["a"]) / (seconds - 1.0)
        last = cluster.trace[-1]
        stable[f"1 + {consumers}"] = {"growth_per_s": growth, "delivered_per_s": last.delivered_per_s}
        rows.append((f"1 producer, {consumers} consumers", last.published_per_s, last.delivered_per_s, growth))
        axes[1].plot(
            [one.time_s for one in cluster.trace],
            [one.lengths["a"] for one in cluster.trace],
            color=colour,
            label=f"1 producer, {consumers} consumers",
        )
    axes[1].set_xlabel("time in s (figures 5 and 6)")
    axes[1].set_ylabel("messages that wait")
    axes[1].legend(fontsize=8)
    limit = {producers: _settled_rate(producers, seconds) for producers in range(1, 9)}
    axes[2].plot([3 * n for n in limit], list(limit.values()), color=ONE_STEP, marker="o", markersize=3)
    axes[2].axvline(12, color=MEASURED, linestyle=":")
    axes[2].set_xlabel("clients, 1 producer to 2 consumers (figure 7; dotted: the capacity)")
    axes[2].set_ylabel("delivered, 1/s")
    context.note(f"1 + 1 grows by {stable['1 + 1']['growth_per_s']:.0f}/s; limit {max(limit.values()):.0f}/s")
    return Report(
        title="One queue: length, clients, limit",
        body=[
            "A node of the twin that is half as fast at 1,500 messages, with producers that send 475 messages a "
            "second and consumers that take half as many.",
            Table(("clients", "published, 1/s", "delivered, 1/s", "growth of the queue, 1/s"), rows),
            Picture("runs", "Rate by length; length by clients; rate by clients", figure),
            "As in the document: the longer the queue, the slower it is; one consumer for a producer is too few, "
            "two are enough, and a third changes nothing; throughput stops growing at the capacity. The "
            "document's absolute rates come from other machines and are not compared.",
        ],
        data={
            "stable": stable,
            "limit": {str(3 * producers): rate for producers, rate in limit.items()},
            "rate_by_length": {"0": rates[-1], str(round(lengths[0])): rates[0]},
        },
    )


def _cluster(producers: int, consumers: int) -> TwinCluster:
    sessions = {"a": (producers, consumers)}
    return TwinCluster(ALONE, [Node("a", 12)], node=NODE, client=CLIENT, sessions=sessions)


def _fill_and_drain() -> tuple[list[float], list[float]]:
    """Write 1,500 messages, then read them with as many consumers as the node can serve."""
    cluster = _cluster(4, 0)
    while cluster.length < 1500.0:
        cluster.run(0.1)
    for id in list(cluster.state.sessions):
        cluster.leave(id)
    for _ in range(40):
        cluster.join("consumer")
    lengths, rates = [], []
    while cluster.length > 150.0:
        before, delivered = cluster.length, cluster.delivered
        cluster.run(0.1)
        lengths.append((before + cluster.length) / 2)
        rates.append((cluster.delivered - delivered) / 0.1)
    return lengths, rates


def _settled_rate(producers: int, seconds: float) -> float:
    cluster = _cluster(producers, 2 * producers)
    cluster.run(seconds)
    return cluster.trace[-1].delivered_per_s
