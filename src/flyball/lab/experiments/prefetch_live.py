"""Prefetch, live: open loop and controllers on a real RabbitMQ (Rosa and Cavalcanti, fig. 3 and 5 to 7).

The same open-loop staircase and the same controllers as on the twin (prefetch_open_loop, prefetch_consumer),
behind 6.7 ms of one-way delay, with handlers of 1 ms, two at a time. Needs RabbitMQ on this machine; the report
says so if it is missing.
"""

from __future__ import annotations

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, SHADE, new_figure
from flyball.lab.rigs.consumer import figures
from flyball.lab.rigs.consumer.contenders import contenders, open_loop, our_pi
from flyball.lab.rigs.consumer.rig import Rig, run_live
from flyball.servers.rabbitmq import installed

GOAL = 400.0
HANDLERS = 2
SKIP = 5
TITLE = "A consumer on RabbitMQ: open loop and controllers (Rosa and Cavalcanti)"


def run(context: ExperimentContext) -> Report:
    if not installed():
        return Report(TITLE, ["Not run: RabbitMQ is not on this machine (apt-get install rabbitmq-server)."])
    samples = 15 if context.quick else 60
    windows = tuple(float(w) for w in (range(1, 31, 2) if context.quick else range(1, 37)))
    with Rig() as rig:
        u, y = open_loop(rig, windows, concurrency=HANDLERS)
        static_pi, fit = our_pi(u, y)
        context.note(f"{fit.model}, R² {fit.r2:.3f}, linear to {fit.linear_range[1]:g}")
        all_contenders = contenders(GOAL, fit.model.gain, static_pi)
        runs = {}
        for contender in all_contenders:
            queue = rig.queue(fill=int(2.0 * GOAL * samples))
            runs[contender.name] = run_live(
                rig,
                queue,
                f"rate={GOAL}",
                samples=samples,
                controller=contender.controller,
                concurrency=HANDLERS,
                **contender.options,
            )
            context.note(f"{contender.name}: std {runs[contender.name].rate[SKIP:].std():.1f} msg/s")
    figure, axes = new_figure(rows=1 + len(runs), row_height_in=1.7)
    axes[0].axvspan(*fit.linear_range, color=SHADE, alpha=0.12, linewidth=0)
    axes[0].plot(u, y, ".", color=MEASURED)
    rest = fit.model.offset / (1.0 - fit.model.a[0])
    inside = u <= fit.linear_range[1]
    axes[0].plot(u[inside], fit.model.gain * u[inside] + rest, color=FREE_RUN)
    axes[0].set_title("open loop: msg/s over window; green: linear range", fontsize=9)
    rows, data = [], {}
    for axis, (name, one_run) in zip(axes[1:], runs.items(), strict=True):
        axis.plot(one_run.time, one_run.rate, color=ONE_STEP)
        axis.axhline(GOAL, color=MEASURED, linestyle="--", linewidth=0.8)
        axis.set_ylim(0.0, 800.0)
        axis.set_title(name, fontsize=9)
        tail = one_run.rate[SKIP:]
        settled = figures.settled(one_run.rate, one_run.goal)
        mean, std = float(tail.mean()), float(tail.std())
        rows.append((name, mean, std, settled if settled < one_run.rate.size else None))
        data[name] = {"mean": mean, "std": std, "settled": settled}
    axes[-1].set_xlabel("time in s")
    return Report(
        title=TITLE,
        body=[
            f"Goal {GOAL:.0f} msg/s, {samples} samples of 1 s, one run each, the first {SKIP} left out of mean "
            f"and deviation. The plant: {fit.model.gain:.1f} msg/s per slot (the paper's b: 59.73), R² "
            f"{fit.r2:.3f}, linear to {fit.linear_range[1]:g} slots. One run on a machine that others may use: "
            f"the benchmark `consumer` repeats and compares.",
            Table(("controller", "mean", "std", "settled, samples"), rows),
            Picture("runs", "Open loop, then each controller; dashed: the goal", figure),
        ],
        data={
            "gain": fit.model.gain,
            "r2": fit.r2,
            "linear_range": list(fit.linear_range),
            "controllers": data,
        },
    )
