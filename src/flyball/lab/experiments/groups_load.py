"""Groups: three published ways to balance by load that fail, each beside ours (the strategy `load`).

A relative band is crossed by jitter at low load (Kinesis Client Library, pull request 1814). A filtered load
that does not know what was moved unloads too much (Pulsar, PIP-364). The lag alone puts all idle queues on one
member. Groups are random, and run in the twin with the live decisions of ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, new_figure
from flyball.twin.groups.cases import idle_case, random_case
from flyball.twin.groups.load_run import LoadLoop, LoadRun, run_load
from flyball.twin.groups.published import FilteredLoad, LagAlone, RelativeBand

SLOWER_AT_S, WAKE_AT_S = 607.0, 600.0


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (2 if context.quick else 10))
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    low = {
        name: [_moves_an_hour(balancer(), seed) for seed in seeds]
        for name, balancer in (("theirs", RelativeBand), ("ours", LoadLoop))
    }
    data["moves an hour at low load"] = {name: float(np.mean(moves)) for name, moves in low.items()}
    rows.append(("relative band, 2 % utilised", "moves an hour", *_means(low)))
    runs = {
        name: [
            run_load(
                random_case(seed, utilisation=0.5, slower_at_s=SLOWER_AT_S).plant(seed),
                balancer(),
                SLOWER_AT_S + 500,
            )
            for seed in seeds
        ]
        for name, balancer in (("theirs", FilteredLoad), ("ours", LoadLoop))
    }
    least = {name: [_least_of_the_slow(one) for one in found] for name, found in runs.items()}
    spread = {name: [one.spread_at(SLOWER_AT_S + 60.0) for one in found] for name, found in runs.items()}
    moves = {name: [float(one.moves.sum()) for one in found] for name, found in runs.items()}
    data["least utilisation of the slow member / mean"] = {name: float(min(v)) for name, v in least.items()}
    data["spread after three decisions"] = {name: float(np.median(v)) for name, v in spread.items()}
    data["moves after a slowdown"] = {name: float(np.mean(v)) for name, v in moves.items()}
    rows.append(("filtered load, a member × 3 slower", "least utilisation of it / mean", *_means(least)))
    rows.append(("", "largest / mean utilisation after 60 s", *_means(spread)))
    rows.append(("", "moves", *_means(moves)))
    most, woken = {}, {}
    for name, balancer in (("theirs", LagAlone()), ("ours", LoadLoop())):
        plant = idle_case(WAKE_AT_S).plant(context.seed)
        run_load(plant, balancer, WAKE_AT_S - 1.0)
        owners = list(plant.owners.values())
        most[name] = [float(max(map(owners.count, set(owners))))]
        woken[name] = [float(run_load(plant, balancer, WAKE_AT_S + 1.0).utilisation[-1].max())]
    data["queues of one member while 36 of 40 are idle"] = {name: v[0] for name, v in most.items()}
    data["largest utilisation when they wake up"] = {name: v[0] for name, v in woken.items()}
    rows.append(("lag alone, 36 of 40 queues idle", "queues of one member", *_means(most)))
    rows.append(("", "largest utilisation when they wake up", *_means(woken)))
    for name, found in data.items():
        context.note(f"{name}: {found['theirs']:.3g} theirs, {found['ours']:.3g} ours")
    return Report(
        title="Balancing by load: three published failures",
        body=[
            f"{len(seeds)} random groups of 3 to 12 members and 12 to 144 queues; a decision every 20 s. Means "
            "over the groups.",
            Table(("rule, and where it fails", "", "theirs", "ours"), rows),
            Picture(
                "runs",
                f"A member becomes three times slower at {SLOWER_AT_S:.0f} s: its utilisation (colour) and that "
                "of the others (grey), as multiples of the mean",
                _draw({"filtered load": runs["theirs"][0], "ours": runs["ours"][0]}),
            ),
            "Ours has an absolute band, which jitter at low load does not reach, and moves nothing for a gain "
            "that the errors of its estimates explain. What it filters are the queues' rates and the members' "
            "slowdowns. A member's load is computed from those with the owners as they will be, so that a move is "
            "in it at once, and nothing has to catch up. Queues without traffic are dealt out by number.",
        ],
        data=data,
    )


def _moves_an_hour(balancer: Any, seed: int) -> float:
    found = run_load(random_case(seed, utilisation=0.02).plant(seed), balancer, 2_400.0)
    return 2.0 * found.moves_between(600.0, 2_400.0)


def _means(found: dict[str, list[float]]) -> tuple[float, float]:
    return float(np.mean(found["theirs"])), float(np.mean(found["ours"]))


def _least_of_the_slow(one: LoadRun) -> float:
    after = one.times_s > SLOWER_AT_S + 1.0
    return float((one.utilisation[after, 0] / one.mean[after]).min())


def _draw(runs: dict[str, LoadRun]) -> Any:
    figure, axes = new_figure(rows=len(runs), row_height_in=2.4)
    for axis, (name, one) in zip(axes, runs.items(), strict=True):
        shown = one.times_s >= SLOWER_AT_S - 60.0
        relative = one.utilisation[shown] / one.mean[shown, None]
        axis.plot(one.times_s[shown], relative[:, 1:], color=MEASURED, linewidth=0.5, alpha=0.6)
        axis.plot(one.times_s[shown], relative[:, 0], color=FREE_RUN if name != "ours" else ONE_STEP)
        axis.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{name}: {int(one.moves.sum())} moves", fontsize=9)
        axis.set_ylabel("utilisation / mean")
    axes[-1].set_xlabel("time in s")
    return figure
