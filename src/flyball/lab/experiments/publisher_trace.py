"""Publisher: a trace of registrations, as it is and 50 times as fast (Balasubramanian et al., fig. 12 to 14).

The trace of the publisher paper (docs/references.md) is not public. This one is **generated** to have the features
that the paper describes: registrations, renewals and deletions at a core node; a low load, for which N = 1 is best
without tuning; a rate that varies slowly; and, 50 times as fast, a load for which N = 1 is hopeless. Hosts come at
random at a rate that swings by half around its mean, each brings a few records in quick succession, and renews
them after a fixed time with jitter.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flyball.control.step import Controller
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, new_figure
from flyball.twin.publisher import PublisherRun, run_publisher, tuned, untuned
from flyball.twin.workload import Trace

FASTER = 50.0
SIZES = (1, 10, 50)
HOSTS_PER_S, RECORDS, RENEWAL_S, SWING_S = 0.13, 3.0, 1800.0, 5000.0


def registrations(rng: np.random.Generator, duration_s: float) -> Trace:
    """A generated trace: about 0.8 requests a second, in small groups, renewed every half hour.

    >>> trace = registrations(np.random.default_rng(1), 10_000.0)
    >>> 0.4 < len(trace.times_s) / 10_000.0 < 1.2
    True
    """
    times: list[float] = []
    at_s = -RENEWAL_S
    while at_s < duration_s:
        at_s += float(rng.exponential(1.0 / (1.5 * HOSTS_PER_S)))
        if rng.random() > (1.0 + 0.5 * math.sin(2.0 * math.pi * at_s / SWING_S)) / 1.5:
            continue  # thinning: what is left has the rate that swings
        records = int(rng.geometric(1.0 / RECORDS))
        stays = int(rng.geometric(0.5))
        for visit in range(1 + stays):
            start_s = at_s + visit * RENEWAL_S * float(rng.normal(1.0, 0.02))
            times += [start_s + float(gap_s) for gap_s in np.cumsum(rng.exponential(0.5, records))]
    return Trace(tuple(sorted(time_s for time_s in times if 0.0 <= time_s < duration_s)))


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (3 if context.quick else 10))
    trace_s = 5_000.0 if context.quick else 20_000.0
    settings: list[tuple[str, int, Controller[Any]]] = [("off", size, untuned(size)) for size in SIZES]
    settings += [(name, size, tuned(name)) for name in ("batch-aimd", "auto") for size in SIZES]
    body: list[str | Table | Picture] = [
        "**The trace is generated, not the paper's** (that one is not public): "
        f"{HOSTS_PER_S:g} hosts a second on average, swinging by half over {SWING_S:g} s, {RECORDS:g} records "
        f"each, renewed about every {RENEWAL_S:g} s. {len(seeds)} seeds; ± is the 95 % interval of the mean. "
        "T_poll is 50 ms without tuning, as in the paper.",
    ]
    data: dict[str, Any] = {}
    shown: dict[str, dict[tuple[str, int], PublisherRun]] = {}
    for speed, name in ((1.0, "as generated"), (FASTER, f"{FASTER:g} times as fast")):
        # the slow trace needs no more messages than the fast one has in a fiftieth of its time
        length_s = trace_s if speed > 1.0 else trace_s / 5.0
        rows: list[tuple[object, ...]] = []
        data[name], shown[name] = {}, {}
        load = 0.0
        for tuning, size, controller in settings:
            runs: list[PublisherRun] = []
            for seed in seeds:
                trace = registrations(np.random.default_rng(seed), length_s)
                load = len(trace.times_s) / length_s * speed
                workload = Trace(trace.times_s, speed=speed)
                runs.append(
                    run_publisher(controller, workload, seed=seed, duration_s=length_s / speed, batch=size)
                )
            mean, high = interval([r.mean_s for r in runs]), interval([r.quantile_s(0.99) for r in runs])
            rows.append((tuning, size, mean.text(1000), high.text(1000)))
            data[name][f"{tuning} {size}"] = {"mean_s": mean.mean, "ci95_s": mean.half, "p99_s": high.mean}
            shown[name][tuning, size] = runs[0]
        body += [
            f"## {name.capitalize()} ({load:.2g} requests a second)",
            Table(("auto-tuning", "N (tuned: at the start)", "mean, ms", "99 %, ms"), rows),
        ]
        context.note(f"{name}: {load:.2g}/s, " + ", ".join(f"{tuning} {n} {m} ms" for tuning, n, m, _ in rows))
    body += [
        Picture(
            "runs",
            "Response times (boxes: quartiles, whiskers: 1st to 99th percentile); last: N of `batch-aimd`",
            _draw(shown),
        ),
        "As figures 12 to 14 show: with tuning off the small N is best on the slow trace and hopeless on the fast "
        "one; with tuning on, the response time is the same whatever N was at the start, and N follows the load.",
    ]
    return Report(
        title="Registrations at a lookup service, generated trace (Balasubramanian et al.)",
        body=body,
        data={"speeds": data},
    )


def _draw(shown: dict[str, dict[tuple[str, int], PublisherRun]]) -> Any:
    figure, axes = new_figure(rows=len(shown) + 1, row_height_in=2.6)
    colours = {"off": MEASURED, "batch-aimd": FREE_RUN, "auto": ONE_STEP}
    for axis, (name, runs) in zip(axes, shown.items(), strict=False):
        boxes = axis.boxplot(
            [1000 * one.response_s for one in runs.values()],
            tick_labels=[f"{tuning} {size}" for tuning, size in runs],
            whis=(1, 99),
            showfliers=False,
            patch_artist=True,
        )
        for box, (tuning, _) in zip(boxes["boxes"], runs, strict=True):
            box.set_facecolor(colours[tuning])
            box.set_alpha(0.5)
        axis.set_yscale("log")
        axis.set_ylabel("ms")
        axis.set_title(name, fontsize=9)
    last = list(shown.values())[-1]["batch-aimd", 1]
    axes[-1].step(
        [t for t, _ in last.wanted], [n for _, n in last.wanted], where="post", color=FREE_RUN, linewidth=0.6
    )
    axes[-1].set_ylabel("N of batch-aimd")
    load = axes[-1].twinx()
    counts, edges = np.histogram(last.arrival_s, np.arange(0.0, last.end_s + 1.0, 5.0))
    load.step(edges[:-1], counts / 5.0, where="post", color=MEASURED, linewidth=0.8, linestyle="--")
    load.set_ylabel("requests/s (dashed)")
    axes[-1].set_xlabel("time in s")
    return figure
