"""Publisher: a slow subscriber congests the broker, without and with auto-tuning (Balasubramanian et al.).

The subscriber reads 25 messages a second between vacations that grow longer; the broker's queue holds 100. Without
tuning requests are dropped, with it none. The publisher paper (docs/references.md) reports the outcome without a
figure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flyball.control.step import Controller
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, SHADE, new_figure
from flyball.twin.publisher import CONGESTED, NearSide, run_publisher, tuned, untuned
from flyball.twin.workload import Poisson

LOAD = 17.5
BATCH = 10
CASES: dict[str, tuple[Controller[Any], bool, str]] = {
    "untuned, one line for all": (untuned(BATCH), False, MEASURED),
    "untuned, requests first": (untuned(BATCH), True, SHADE),
    "batch-aimd": (tuned("batch-aimd"), True, FREE_RUN),
    "auto": (tuned("auto"), True, ONE_STEP),
}


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (3 if context.quick else 10))
    vacations_s = (1.0, 4.0, 12.0) if context.quick else (0.5, 1.0, 2.0, 4.0, 8.0, 12.0)
    duration_s = 120.0 if context.quick else 300.0
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {name: {} for name in CASES}
    for vacation_s in vacations_s:
        for name, (controller, first, _) in CASES.items():
            runs = [
                run_publisher(
                    controller,
                    Poisson(LOAD),
                    seed=seed,
                    duration_s=duration_s,
                    batch=BATCH,
                    near=NearSide(receive_first=first),
                    far=replace(CONGESTED, vacation_s=vacation_s),
                )
                for seed in seeds
            ]
            offered = [len(one.response_s) + one.dropped for one in runs]
            lost = interval([one.dropped / came for one, came in zip(runs, offered, strict=True)])
            read = interval([len(one.read_after_s) / duration_s for one in runs])
            waiting = interval([float(one.waiting) for one in runs])
            rows.append((vacation_s, name, lost.text(100, 1), read.text(1, 1), waiting.text()))
            data[name][f"{vacation_s:g}"] = {
                "dropped": [one.dropped for one in runs],
                "dropped_share": lost.mean,
                "read_per_s": read.mean,
                "waiting": waiting.mean,
            }
        untuned_drops = data["untuned, requests first"][f"{vacation_s:g}"]["dropped"]
        context.note(f"vacations of {vacation_s:g} s: untuned drops {untuned_drops}")
    figure, axes = new_figure(rows=2, row_height_in=2.4)
    for name, (_, _, colour) in CASES.items():
        found = data[name]
        for axis, what, scale in ((axes[0], "dropped_share", 100.0), (axes[1], "read_per_s", 1.0)):
            axis.plot(
                [float(vacation_s) for vacation_s in found],
                [scale * one[what] for one in found.values()],
                color=colour,
                marker="o",
                markersize=3,
                linestyle="--" if name.startswith("untuned, one") else "-",
                label=name,
            )
    axes[0].set_ylabel("requests dropped, %")
    axes[1].set_ylabel("read by the subscriber, 1/s")
    axes[1].set_ylim(0.0, None)
    axes[1].set_xlabel("mean vacation of the subscriber, s")
    axes[0].legend(fontsize=8)
    return Report(
        title="A slow subscriber, without and with auto-tuning (Balasubramanian et al.)",
        body=[
            f"{LOAD:g} requests/s, N = {BATCH} (or from there), {duration_s:g} s, {len(seeds)} seeds; ± is the "
            f"95 % interval. Waiting: accepted, safe in the store, and not at the broker at the end.",
            Table(
                ("vacation, s", "publisher", "dropped, %", "read by the subscriber, 1/s", "waiting at the end"),
                rows,
            ),
            Picture("runs", "Drops, and what came through", figure),
            "The untuned publisher hands every batch to workers, which then wait for the broker until none is "
            "left for requests; priority helps them little once all are busy. `batch-aimd` and `auto` bound "
            "the transfers under way, so that requests always find a worker, and what the broker does not take "
            "waits in the store. None of them can make a subscriber "
            "faster: what came through is the same or nearly so.",
        ],
        data={"load": LOAD, "seeds": len(seeds), "cases": data},
    )
