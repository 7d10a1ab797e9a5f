"""S5: more than two lanes: one of them gets a hog, LQR on the differences of delays shares the events.

S5 names LQR for larger N and shows no figure. Lanes of the twin, the decisions are the pipeline's own.
"""

from __future__ import annotations

from typing import Any

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, new_figure
from flyball.lab.rigs.pipeline.lanes import LaneWorld, Weigher, balancing, p99_s
from flyball.twin.lanes import LaneModel

MODEL = LaneModel(queue_bytes=1e15)
HOG, LOAD = 0.5, 0.84
QUIET_S, HOG_S = 60.0, 120.0


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (2 if context.quick else 8))
    counts = (3, 8) if context.quick else (3, 4, 8, 16)
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    figure, axes = new_figure(rows=2, row_height_in=2.4)
    for lanes in counts:
        for name in ("round robin", "control"):
            worlds = [_run(seed, lanes, None if name == "round robin" else balancing(lanes)) for seed in seeds]
            quiet = interval([p99_s(world, QUIET_S / 3, QUIET_S) for world in worlds])
            late = interval([p99_s(world, QUIET_S + HOG_S / 2, QUIET_S + HOG_S) for world in worlds])
            share = interval([world.weights[1] * lanes for world in worlds])
            rows.append((lanes, name, quiet.text(1, 2), late.text(1, 2), share.text(1, 2)))
            data[f"{lanes} lanes, {name}"] = {
                "quiet_p99_s": quiet.mean,
                "hog_p99_s": late.mean,
                "share_of_disturbed": share.mean,
            }
            context.note(f"{lanes} lanes, {name}: p99 {quiet.text(1, 2)} s, with the hog {late.text(1, 2)} s")
            if lanes == counts[-1]:
                colour = FREE_RUN if name == "round robin" else ONE_STEP
                trace = worlds[0].trace
                axes[0].plot(
                    trace.times_s, [max(waiting) / 1e3 for waiting in trace.backlog], color=colour, label=name
                )
                axes[1].plot(trace.times_s, [weights[1] * lanes for weights in trace.weights], color=colour)
    for axis in axes:
        axis.axvline(QUIET_S, color=MEASURED, linewidth=0.8, linestyle=":")
    axes[0].set_ylabel("longest input, 1000 events")
    axes[0].set_yscale("log")
    axes[0].legend(fontsize=8)
    axes[1].set_ylabel("disturbed lane's part of an equal share")
    axes[1].set_xlabel("time in s")
    return Report(
        title="S5: more than two lanes",
        body=[
            f"{100 * LOAD:.0f} % of what is left beside a hog that takes {100 * HOG:.0f} % of one lane's CPU "
            f"from {QUIET_S:.0f} s on. Delays are those of the hog's second minute; {len(seeds)} seeds, ± is the "
            f"95 % interval. The share is 1 where the disturbed lane gets as much as the others.",
            Table(("lanes", "shares by", "p99 before, s", "p99 with the hog, s", "its share"), rows),
            Picture("runs", f"{counts[-1]} lanes; dotted: the hog comes", figure),
            "The more lanes there are, the less one of them matters, and the less the others have to take over. "
            "Round robin lets its input grow whatever the number.",
        ],
        data={"cases": data, "load": LOAD},
    )


def _run(seed: int, lanes: int, weigh: Weigher | None) -> LaneWorld:
    world = LaneWorld([MODEL] * lanes, seed, weigh=weigh, spare_laggards=weigh is not None)
    world.rate = LOAD * MODEL.capacity(2.0) * (lanes - HOG)
    world.run(QUIET_S)
    world.lanes[1].hog(HOG)
    world.run(HOG_S)
    return world
