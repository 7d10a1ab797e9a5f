"""Cluster: a node is added when the clients exceed the capacity (figures 10 and 11 of Bouchenak et al.).

Five producers and ten consumers join, one every ten seconds, one producer to two consumers. One node for all of
them; nodes added by the configured capacity of twelve clients; and by the measured one.
"""

from __future__ import annotations

from typing import Any

from flyball.cluster.policy import AddNode, CapacityEstimator, Host, Node, Role, Rules
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import FREE_RUN, ONE_STEP, SHADE, new_figure
from flyball.twin.cluster import ClientModel, NodeModel, TwinCluster

CLIENT = ClientModel(publish_per_s=950.0, consume_per_s=475.0)
NODE = NodeModel(operations_per_s=3800.0)
RULES = Rules(allowed_length=1_000_000)
JOINS: tuple[Role, ...] = ("producer", "consumer", "consumer") * 5
COLOURS = {"static": FREE_RUN, "capacity 12": ONE_STEP, "capacity measured": SHADE}


def run(context: ExperimentContext) -> Report:
    every_s = 5.0 if context.quick else 10.0
    after_s = 40.0 if context.quick else 60.0
    figure, axes = new_figure(rows=2, row_height_in=2.4)
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    for name, colour in COLOURS.items():
        cluster = _cluster(name)
        for role in JOINS:
            cluster.join(role)
            cluster.run(every_s)
        cluster.run(after_s)
        added = [time_s for time_s, decision in cluster.decisions if isinstance(decision, AddNode)]
        tail = cluster.trace[-round(after_s / 2) :]
        rate = sum(one.delivered_per_s for one in tail) / len(tail)
        data[name] = {"delivered_per_s": rate, "added_s": added, "nodes": tail[-1].nodes}
        rows.append((name, rate, tail[-1].nodes, ", ".join(f"{time_s:.0f}" for time_s in added) or None))
        times = [one.time_s for one in cluster.trace]
        axes[0].plot(times, [one.delivered_per_s for one in cluster.trace], color=colour, label=name)
        axes[1].step(times, [one.nodes for one in cluster.trace], color=colour, where="post")
        context.note(f"{name}: {rate:.0f}/s with {tail[-1].nodes} nodes, added at {added}")
    axes[0].set_ylabel("delivered, 1/s")
    axes[0].legend(fontsize=8)
    axes[1].set_ylabel("nodes")
    axes[1].set_xlabel("time in s")
    gain = data["capacity 12"]["delivered_per_s"] / data["static"]["delivered_per_s"]
    return Report(
        title="Growth of the cluster",
        body=[
            f"A client every {every_s:g} s; a producer sends 950 messages a second, a consumer takes 475, and a "
            "node serves 1,900 of each. A new node serves after 6 s. Queues may grow, so that no exchange of "
            "messages is mixed into the figures.",
            Table(("nodes", "delivered at the end, 1/s", "nodes at the end", "added at, s"), rows),
            Picture("runs", "Throughput and number of nodes while clients join", figure),
            f"Two nodes deliver {gain:.2f} times as much as one; the document reports 1.9 and 3.7 messages a "
            "millisecond, 1.95 times, with the second queue at about 120 s. When it grows, sessions move to the "
            "new node; the document could only send new clients there. Six clients saturate this node already, so "
            "that the measured capacity asks for more nodes than the configured twelve clients.",
        ],
        data={"cases": data, "gain": gain, "join_every_s": every_s},
    )


def _cluster(name: str) -> TwinCluster:
    if name == "static":
        return TwinCluster(RULES, [Node("a", 12)], node=NODE, client=CLIENT)
    if name == "capacity 12":
        hosts = [Host(host, 12) for host in "bcd"]
        return TwinCluster(RULES, [Node("a", 12, is_configured=True)], hosts, node=NODE, client=CLIENT)
    unknown = [Host(host) for host in "bcd"]
    return TwinCluster(RULES, [Node("a")], unknown, node=NODE, client=CLIENT, estimator=CapacityEstimator())
