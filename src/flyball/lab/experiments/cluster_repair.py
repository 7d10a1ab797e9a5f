"""Cluster: a node is lost and comes back (announced as later work by Bouchenak et al.).

Its clients get other nodes, a spare node replaces it, and what survived on its disk is moved when it returns.
"""

from __future__ import annotations

from typing import Any

from flyball.cluster.policy import Host, Kind, Node, Rules
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, SHADE, new_figure
from flyball.twin.cluster import ClientModel, NodeModel, TwinCluster

CLIENT = ClientModel(publish_per_s=400.0, consume_per_s=210.0)
NODE = NodeModel(operations_per_s=3800.0)
LOST_S, BACK_S, END_S = 30.0, 60.0, 120.0
CASES: dict[str, tuple[frozenset[Kind], bool]] = {
    "no repair": (frozenset({Kind.EXCHANGE}), False),
    "repair, no spare node": (frozenset(Kind), False),
    "repair, spare node": (frozenset(Kind), True),
}
COLOURS = dict(zip(CASES, (FREE_RUN, SHADE, ONE_STEP), strict=True))


def run(context: ExperimentContext) -> Report:
    figure, axes = new_figure(rows=2, row_height_in=2.4)
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    for name, (auto, has_spare) in CASES.items():
        rules = Rules(auto=auto, balance_after_s=2.0, min_nodes=2, shrink_after_s=1000.0)
        hosts = [Host("c", 12)] if has_spare else []
        sessions = {"a": (4, 8), "b": (4, 8)}
        nodes = [Node("a", 12, is_configured=True), Node("b", 12, is_configured=True)]
        cluster = TwinCluster(rules, nodes, hosts, node=NODE, client=CLIENT, sessions=sessions)
        cluster.run(LOST_S)
        before = cluster.trace[-1].delivered_per_s
        cluster.lose("a")
        cluster.run(BACK_S - LOST_S)
        lost = cluster.trace[-1].delivered_per_s
        cluster.restore("a")
        cluster.run(END_S - BACK_S)
        after = cluster.trace[-1].delivered_per_s
        served = [
            one.time_s - LOST_S
            for one in cluster.trace
            if LOST_S + 0.5 < one.time_s <= BACK_S and one.delivered_per_s >= 0.95 * before
        ]
        kept = abs(cluster.published - cluster.delivered - cluster.length)
        data[name] = {
            "before_per_s": before,
            "lost_per_s": lost,
            "after_per_s": after,
            "full_again_s": served[0] if served else None,
            "messages_lost": round(kept),
        }
        rows.append((name, before, lost, served[0] if served else None, after, round(kept)))
        context.note(f"{name}: {before:.0f} → {lost:.0f}/s while lost, full again after {served[:1]}")
        times = [one.time_s for one in cluster.trace]
        axes[0].plot(times, [one.delivered_per_s for one in cluster.trace], color=COLOURS[name], label=name)
        axes[1].plot(times, [sum(one.lengths.values()) for one in cluster.trace], color=COLOURS[name])
    for axis in axes:
        for time_s in (LOST_S, BACK_S):
            axis.axvline(time_s, color=MEASURED, linestyle=":", linewidth=0.8)
    axes[0].set_ylabel("delivered, 1/s")
    axes[0].legend(fontsize=8)
    axes[1].set_ylabel("messages that wait")
    axes[1].set_xlabel("time in s (dotted: the node is lost, and back)")
    return Report(
        title="A lost node",
        body=[
            "Two full nodes of 12 clients; one is lost at 30 s and back at 60 s. A new node serves after 6 s, a "
            "session pauses for half a second while it moves.",
            Table(
                ("case", "before, 1/s", "at 60 s, 1/s", "full again after, s", "at the end, 1/s", "messages lost"),
                rows,
            ),
            Picture("runs", "Throughput and messages that wait", figure),
            "Without repair the clients of the lost node wait for it. With repair they are served by the other "
            "node, as far as it can, until the spare node shares the load. When the lost node is back, three "
            "nodes serve 24 clients; eight producers do not divide by three, so that consumers of one node starve "
            "now and then and some messages are exchanged.",
        ],
        data={"cases": data},
    )
