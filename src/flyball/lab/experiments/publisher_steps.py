"""Publisher: how N and the response time follow steps of the load (Balasubramanian et al., table II and fig. 11).

Load in requests a second: 1.75 until 100 s, 55 until 300, 17.5 until 500, 35 until 750, 17.5 until 1000.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flyball.control.models import Array
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, new_figure
from flyball.twin.publisher import PublisherRun, run_publisher, tuned
from flyball.twin.workload import Steps

PROFILE = ((0.0, 1.75), (100.0, 55.0), (300.0, 17.5), (500.0, 35.0), (750.0, 17.5))
END_S = 1000.0
ROUND_TRIP_S = 0.14
ALLOWED_S = 5 * 0.2
"""Five times the larger of T_poll (at most 200 ms) and the round trip."""


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (4 if context.quick else 20))
    faster = 5.0 if context.quick else 1.0
    profile = tuple((start_s / faster, load) for start_s, load in PROFILE)
    end_s = END_S / faster
    runs = {
        controller: [
            run_publisher(tuned(controller), Steps(profile), seed=seed, duration_s=end_s) for seed in seeds
        ]
        for controller in ("batch-aimd", "auto")
    }
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    ends = [start_s for start_s, _ in profile[1:]] + [end_s]
    for controller, made in runs.items():
        data[controller] = {}
        for (start_s, load), until_s in zip(profile, ends, strict=True):
            settled_s = _mean_s(made, start_s + (until_s - start_s) / 2, until_s)
            recovered_s = recovery_s(made, start_s, settled_s) if start_s else None
            mean_n = float(np.mean([_wanted(one, start_s, until_s) for one in made]))
            batch = float(np.mean([_batch(one, start_s, until_s) for one in made]))
            rows.append(
                (controller, load, mean_n if controller == "batch-aimd" else batch, 1000 * settled_s, recovered_s)
            )
            data[controller][f"{start_s * faster:g}"] = {
                "load": load,
                "settled_s": settled_s,
                "recovery_s": recovered_s,
                "mean_n": mean_n,
                "mean_batch": batch,
            }
            context.note(f"{controller}, {load:g}/s: {1000 * settled_s:.1f} ms, within 10 % after {recovered_s} s")
    figure, axes = new_figure(rows=2, row_height_in=2.6)
    _draw_n(axes[0], runs["batch-aimd"][0], profile, end_s)
    for controller, colour in (("batch-aimd", FREE_RUN), ("auto", ONE_STEP)):
        middle_s, mean_s = _binned(runs[controller], 0.0, end_s - 1.0, 1.0)
        axes[1].plot(middle_s, 1000 * mean_s, color=colour, linewidth=0.8, label=controller)
    axes[1].set_ylabel("response time, ms")
    axes[1].set_xlabel("time in s")
    axes[1].set_ylim(0.0, None)
    axes[1].legend(fontsize=8)
    return Report(
        title="How N and the response time follow steps of the load (Balasubramanian et al.)",
        body=[
            f"{len(seeds)} seeds" + (f", the profile {faster:g} times as fast" if faster != 1 else "") + ". "
            "Settled: mean response time in the second half of a step. Recovered: from the change of the load, "
            f"the first moment from which the mean over seeds, in bins of a round trip, stays within 10 % of "
            f"settled (or within what its own noise explains) for 5 s; a bound of {ALLOWED_S:g} s is five times "
            f"the "
            "longest T_poll.",
            Table(
                ("controller", "requests/s", "mean N (auto: mean batch)", "settled, ms", "recovered after, s"),
                rows,
            ),
            Picture(
                "runs", "Above: N of `batch-aimd` and the load; below: response time, mean over seeds", figure
            ),
            "N follows the load within a few polls, as figure 11 shows. The response time of `auto` does not show "
            "the steps: it needs no N to be found before a message may leave.",
        ],
        data={"seeds": len(seeds), "faster": faster, "controllers": data},
    )


def recovery_s(runs: list[PublisherRun], step_s: float, settled_s: float, within: float = 0.1) -> float:
    """How long after the step the response time is off by more than `within`, as a mean over the runs.

    A bin of a round trip holds few messages, so a bin counts as off only where it is so by more than twice the
    standard error of its mean.
    """
    last_off_s = 0.0
    arrival_s = np.concatenate([one.arrival_s for one in runs]) - step_s
    response_s = np.concatenate([one.response_s for one in runs])
    for at in range(int(5.0 / ROUND_TRIP_S)):
        inside = response_s[(arrival_s >= at * ROUND_TRIP_S) & (arrival_s < (at + 1) * ROUND_TRIP_S)]
        if inside.size < 5:
            continue
        error_s = 2.0 * float(inside.std(ddof=1)) / inside.size**0.5
        if abs(float(inside.mean()) - settled_s) > within * settled_s + error_s:
            last_off_s = (at + 1) * ROUND_TRIP_S
    return last_off_s


def _mean_s(runs: list[PublisherRun], start_s: float, end_s: float) -> float:
    return float(
        np.mean(np.concatenate([r.response_s[(r.arrival_s >= start_s) & (r.arrival_s < end_s)] for r in runs]))
    )


def _wanted(one: PublisherRun, start_s: float, end_s: float) -> float:
    since = np.array([since_s for since_s, _ in one.wanted])
    sizes = np.array([size for _, size in one.wanted])
    at = np.linspace(start_s, end_s, 2000, endpoint=False)
    return float(np.mean(sizes[np.maximum(0, np.searchsorted(since, at, side="right") - 1)]))


def _batch(one: PublisherRun, start_s: float, end_s: float) -> float:
    return float(np.mean([count for when_s, count in one.batch_sizes if start_s <= when_s < end_s] or [0]))


def _binned(runs: list[PublisherRun], start_s: float, end_s: float, bin_s: float) -> tuple[Array, Array]:
    edges = np.arange(start_s, end_s + bin_s / 2, bin_s)
    arrival_s, response_s = (
        np.concatenate([r.arrival_s for r in runs]),
        np.concatenate([r.response_s for r in runs]),
    )
    count = np.histogram(arrival_s, edges)[0]
    total = np.histogram(arrival_s, edges, weights=response_s)[0]
    full = count > 0
    return (edges[:-1] + bin_s / 2)[full], total[full] / count[full]


def _draw_n(axis: Any, one: PublisherRun, profile: tuple[tuple[float, float], ...], end_s: float) -> None:
    axis.step(
        [since_s for since_s, _ in one.wanted],
        [size for _, size in one.wanted],
        where="post",
        color=FREE_RUN,
        linewidth=0.6,
        label="N of batch-aimd, one run",
    )
    axis.set_ylabel("N")
    load = axis.twinx()
    load.step(
        [start_s for start_s, _ in profile] + [end_s],
        [rate for _, rate in profile] + [profile[-1][1]],
        where="post",
        color=MEASURED,
        linestyle="--",
        linewidth=1.0,
    )
    load.set_ylabel("requests/s (dashed)")
    load.set_ylim(0.0, None)
    axis.legend(fontsize=8)
