"""Event processing: flow control of a result queue, without and with a PI on admission (Xu et al., fig. 3 and 6).

A lane of the twin with the batch times measured on Spark, under CPU load for a while; the decisions are the
pipeline's own. The paper: docs/references.md.
"""

from __future__ import annotations

from typing import Any

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, new_figure
from flyball.lab.rigs.pipeline.lanes import LaneSimulation, free_space_range, settled_after
from flyball.pipeline.policy import FlowControl
from flyball.twin.lanes import LaneModel

MB = 1e6
FLOW = FlowControl(limit_bytes=64_000_000, reference_bytes=40_000_000)
MODEL = LaneModel(per_event_s=1 / 32_500)
RATE = 40_000.0
FAST, SLOW = 1.2 * MB, 0.7 * MB
CPU_LOAD = 0.5
BAND = 0.03
# (name, begins at, drain, CPU load)
PHASES = (
    ("start", 0.0, FAST, 0.0),
    ("drain slower", 60.0, SLOW, 0.0),
    ("CPU load on the lane", 120.0, SLOW, CPU_LOAD),
    ("CPU load ended", 180.0, SLOW, 0.0),
    ("drain faster", 240.0, FAST, 0.0),
)
END_S = 300.0


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (3 if context.quick else 10))
    with_control = [_run(seed, FLOW) for seed in seeds]
    without = [_run(seed, None) for seed in seeds]
    figure, axes = new_figure(rows=3, row_height_in=2.0)
    for simulations, name, colour in ((without, "without control", FREE_RUN), (with_control, "PI", ONE_STEP)):
        trace = simulations[0].trace
        axes[0].plot(trace.times_s, [free[0] / MB for free in trace.free_bytes], color=colour, label=name)
        axes[1].plot(trace.times_s, [lost[0] / MB for lost in trace.dropped_bytes], color=colour, label=name)
        axes[2].plot(trace.times_s, [waiting[0] / 1e6 for waiting in trace.backlog], color=colour, label=name)
    axes[0].axhline(FLOW.reference_bytes / MB, color=MEASURED, linestyle="--", linewidth=0.8)
    for axis in axes:
        for _, begins_s, _, _ in PHASES[1:]:
            axis.axvline(begins_s, color=MEASURED, linewidth=0.6, linestyle=":")
    axes[0].set_ylabel("free, MB")
    axes[1].set_ylabel("dropped, MB")
    axes[2].set_ylabel("waiting, M events")
    axes[2].set_xlabel("time in s")
    axes[0].legend(fontsize=8)
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    ends = [begins_s for _, begins_s, _, _ in PHASES[1:]] + [END_S]
    for (name, begins_s, drain, cpu_load), until_s in zip(PHASES, ends, strict=True):
        settled = [settled_after(simulation.records, begins_s, until_s, BAND) for simulation in with_control]
        spans = [free_space_range(simulation.records, begins_s + 16.0, until_s) for simulation in with_control]
        worst = max(abs(edge - 1.0) for span in spans for edge in span)
        most = None if None in settled else max(one for one in settled if one is not None)
        rows.append((name, drain / MB, f"{100 * cpu_load:.0f} %", most, f"± {100 * worst:.1f} %"))
        data[name] = {"settled_intervals": settled, "held_within": worst}
        context.note(f"{name}: settled after {settled} intervals, then within {100 * worst:.1f} %")
    dropped = [simulation.lanes[0].dropped_bytes / MB for simulation in with_control]
    lost = [simulation.lanes[0].dropped_bytes / MB for simulation in without]
    return Report(
        title="Flow control of a result queue (Xu et al.)",
        body=[
            f"{RATE:,.0f} events/s come to a lane that gets through {MODEL.capacity(2.0):,.0f} "
            f"({MODEL.capacity(2.0) * (1 - CPU_LOAD):,.0f} under CPU load): from the first second to the last the "
            f"input exceeds its capacity. Its result queue holds {FLOW.limit_bytes / MB:.0f} MB, of which "
            f"{FLOW.reference_bytes / MB:.0f} MB are to stay free; it is emptied at {FAST / MB:g} or "
            f"{SLOW / MB:g} MB/s. {len(seeds)} seeds.",
            Picture("runs", "One run without control and one with; dotted: a change", figure),
            Table(
                (
                    "phase",
                    "drain, MB/s",
                    "CPU load",
                    f"within ± {100 * BAND:g} % after (intervals)",
                    "largest deviation then",
                ),
                rows,
            ),
            f"Without control the queue fills up and {interval(lost).text(1, 1)} MB of results are dropped, after "
            f"all the work on them was done (fig. 3). With it {max(dropped):g} MB are: what is too much waits at "
            f"the input (fig. 6). The paper holds 400 MB; the queue here is smaller, as Spark's batches are.",
        ],
        data={
            "phases": data,
            "dropped_mb": dropped,
            "dropped_mb_without_control": lost,
            "reference_mb": FLOW.reference_bytes / MB,
        },
    )


def _run(seed: int, flow: FlowControl | None) -> LaneSimulation:
    simulation = LaneSimulation([MODEL], seed, flow=flow)
    simulation.rate = RATE
    ends = [begins_s for _, begins_s, _, _ in PHASES[1:]] + [END_S]
    for (_, begins_s, drain, cpu_load), until_s in zip(PHASES, ends, strict=True):
        simulation.lanes[0].drain(drain)
        simulation.lanes[0].set_cpu_load(cpu_load)
        simulation.run(until_s - begins_s)
    return simulation
