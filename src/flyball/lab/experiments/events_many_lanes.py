"""Event processing: balancing more than two lanes by LQR while one has CPU load (proposed by Xu et al.).

The event-processing paper (docs/references.md) names LQR for larger N and shows no figure. Lanes of the twin; the
decisions are the pipeline's own.
"""

from __future__ import annotations

from typing import Any

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, new_figure
from flyball.lab.rigs.pipeline.lanes import LaneSimulation, Weigher, lane_balancing, p99_s
from flyball.twin.lanes import LaneModel

MODEL = LaneModel(queue_bytes=1e15)
CPU_LOAD, UTILISATION = 0.5, 0.84
BEFORE_S, LOAD_S = 60.0, 120.0


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (2 if context.quick else 8))
    counts = (3, 8) if context.quick else (3, 4, 8, 16)
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    figure, axes = new_figure(rows=2, row_height_in=2.4)
    for lanes in counts:
        for name in ("round robin", "control"):
            simulations = [
                _run(seed, lanes, None if name == "round robin" else lane_balancing(lanes)) for seed in seeds
            ]
            quiet = interval([p99_s(simulation, BEFORE_S / 3, BEFORE_S) for simulation in simulations])
            late = interval(
                [p99_s(simulation, BEFORE_S + LOAD_S / 2, BEFORE_S + LOAD_S) for simulation in simulations]
            )
            share = interval([simulation.weights[1] * lanes for simulation in simulations])
            rows.append((lanes, name, quiet.text(1, 2), late.text(1, 2), share.text(1, 2)))
            data[f"{lanes} lanes, {name}"] = {
                "quiet_p99_s": quiet.mean,
                "cpu_load_p99_s": late.mean,
                "share_of_disturbed": share.mean,
            }
            context.note(f"{lanes} lanes, {name}: p99 {quiet.text(1, 2)} s, under CPU load {late.text(1, 2)} s")
            if lanes == counts[-1]:
                colour = FREE_RUN if name == "round robin" else ONE_STEP
                trace = simulations[0].trace
                axes[0].plot(
                    trace.times_s, [max(waiting) / 1e3 for waiting in trace.backlog], color=colour, label=name
                )
                axes[1].plot(trace.times_s, [weights[1] * lanes for weights in trace.weights], color=colour)
    for axis in axes:
        axis.axvline(BEFORE_S, color=MEASURED, linewidth=0.8, linestyle=":")
    axes[0].set_ylabel("longest input, 1000 events")
    axes[0].set_yscale("log")
    axes[0].legend(fontsize=8)
    axes[1].set_ylabel("disturbed lane's part of an equal share")
    axes[1].set_xlabel("time in s")
    return Report(
        title="Balancing more than two lanes",
        body=[
            f"{100 * UTILISATION:.0f} % of the lanes' capacity under a CPU load of {100 * CPU_LOAD:.0f} % on one "
            f"lane's core from {BEFORE_S:.0f} s on. Delays are those of the second minute under load; "
            f"{len(seeds)} seeds, ± is the 95 % interval. The share is 1 where the disturbed lane gets as much as "
            f"the others.",
            Table(("lanes", "shares by", "p99 before, s", "p99 under CPU load, s", "its share"), rows),
            Picture("runs", f"{counts[-1]} lanes; dotted: the CPU load begins", figure),
            "The more lanes there are, the less one of them matters, and the less the others have to take over. "
            "With round robin the backlog of the disturbed lane grows, whatever the number.",
        ],
        data={"cases": data, "load": UTILISATION},
    )


def _run(seed: int, lanes: int, weigh: Weigher | None) -> LaneSimulation:
    simulation = LaneSimulation([MODEL] * lanes, seed, weigh=weigh, skip_laggards=weigh is not None)
    simulation.rate = UTILISATION * MODEL.capacity(2.0) * (lanes - CPU_LOAD)
    simulation.run(BEFORE_S)
    simulation.lanes[1].set_cpu_load(CPU_LOAD)
    simulation.run(LOAD_S)
    return simulation
