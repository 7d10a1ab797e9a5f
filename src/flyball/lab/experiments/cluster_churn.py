"""Cluster: 1,000 random joins and leaves, by the published rules and with sessions that move.

Who leaves is not for the cluster to choose, so that without moves the placement drifts away from the fair one.
With them it stays within one client (future work of Bouchenak et al.).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flyball.cluster.policy import ORIGINAL, AddNode, Host, MarkNode, MoveSession, Node, Rules, measure_imbalance
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, new_figure
from flyball.twin.cluster import ClientModel, TwinCluster

RULES = {"published rules": ORIGINAL, "with moves": Rules(balance_after_s=0.0)}
CAPACITIES = {"equal": (12, 12, 12, 12), "unequal": (24, 12, 8, 4)}
CLIENT = ClientModel(publish_per_s=2.0, consume_per_s=1.0)
PERIOD, EVERY_S = 250, 4.0


def run(context: ExperimentContext) -> Report:
    events = 250 if context.quick else 1000
    seeds = range(context.seed, context.seed + (2 if context.quick else 5))
    figure, axes = new_figure(rows=2, row_height_in=2.4)
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    for nodes, capacities in CAPACITIES.items():
        for name, rules in RULES.items():
            runs = [_run(rules, capacities, events, seed) for seed in seeds]
            worst = max(max(distances) for distances, _ in runs)
            mean = float(np.mean([distances for distances, _ in runs]))
            far = float(np.mean([np.array(distances) >= 1.0 for distances, _ in runs]))
            moved, changes = (
                float(
                    np.mean([sum(isinstance(one, kinds) for _, one in cluster.decisions) for _, cluster in runs])
                )
                for kinds in (MoveSession, (AddNode, MarkNode))
            )
            rows.append((nodes, name, worst, mean, 100 * far, moved, changes))
            data[f"{nodes}, {name}"] = {
                "worst_clients": worst,
                "mean_clients": mean,
                "far_share": far,
                "sessions_moved": moved,
                "nodes_added_or_marked": changes,
            }
            context.note(f"{nodes}, {name}: worst {worst:.2f} clients, {moved:.0f} moves")
            if nodes == "equal":
                colour = ONE_STEP if name == "with moves" else FREE_RUN
                axes[0].plot(runs[0][0], color=colour, linewidth=0.9, label=name)
                trace = runs[0][1].trace
                axes[1].step([one.time_s / EVERY_S for one in trace], [one.nodes for one in trace], color=colour)
                if name == "with moves":
                    times = [one.time_s / EVERY_S for one in trace]
                    axes[1].plot(times, [one.clients / 12 for one in trace], color=MEASURED, linestyle=":")
    axes[0].axhline(1.0, color=MEASURED, linestyle=":")
    axes[0].set_ylabel("clients away from the share")
    axes[0].legend(fontsize=8)
    axes[1].set_ylabel("nodes (dotted: clients / 12)")
    axes[1].set_xlabel("joins and leaves")
    return Report(
        title="A thousand joins and leaves",
        body=[
            f"{events} events, {len(seeds)} seeds; a third of the clients are producers; their number swings "
            f"between none and more than all nodes can serve. The distance is that of the node that is farthest "
            f"from its share of producers or consumers, {EVERY_S:g} s after each event.",
            Table(
                (
                    "nodes",
                    "rules",
                    "worst, clients",
                    "mean",
                    "1 or more, % of the time",
                    "sessions moved",
                    "nodes added or marked",
                ),
                rows,
            ),
            Picture("runs", "Four equal nodes: distance from the fair placement, and nodes in use", figure),
            "Below one client nothing is to be gained by moving. The published rules mark a node as soon as the "
            "others would be just full, and use it again at the next join; with the band between growing and "
            "shrinking and the wait before shrinking, nodes are added and marked only with the swings.",
        ],
        data={"cases": data, "events": events},
    )


def _run(rules: Rules, capacities: tuple[int, ...], events: int, seed: int) -> tuple[list[float], TwinCluster]:
    """The distance from the fair placement after each event."""
    draw = np.random.default_rng(seed)
    first, *others = (f"n{at}" for at in range(len(capacities)))
    hosts = [Host(name, size, is_ready=True) for name, size in zip(others, capacities[1:], strict=True)]
    cluster = TwinCluster(
        rules,
        [Node(first, capacities[0], is_configured=True, is_permanent=True)],
        hosts,
        client=CLIENT,
        step_s=0.5,
    )
    most = sum(capacities)
    distances: list[float] = []
    for at in range(events):
        wanted = most * (0.5 - 0.55 * np.cos(2 * np.pi * at / PERIOD))
        present = list(cluster.state.sessions)
        if not present or draw.random() < 0.5 + 0.4 * np.sign(wanted - len(present)):
            cluster.join("producer" if draw.random() < 1 / 3 else "consumer")
        else:
            cluster.leave(str(draw.choice(present)))
        cluster.run(EVERY_S)
        distances.append(measure_imbalance(cluster.state).clients)
    return distances, cluster
