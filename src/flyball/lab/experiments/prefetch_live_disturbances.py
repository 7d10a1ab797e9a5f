"""Prefetch, live: disturbances, noise, late metrics, drift on RabbitMQ (future work of Rosa and Cavalcanti).

The cases of prefetch_disturbances behind 6.7 ms of one-way delay. One run of each controller and case; the
benchmark `consumer` repeats and compares. Needs RabbitMQ on this machine; the report says so if it is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.experiments.prefetch_disturbances import COLOURS, CONTROLLERS
from flyball.lab.plotting import MEASURED, new_figure
from flyball.lab.rigs.consumer.contenders import Contender
from flyball.lab.rigs.consumer.disturbances import (
    BURST,
    DRIFTING,
    GOAL,
    ONSET,
    SLOWER_HANDLERS,
    Metric,
    late_metric,
    noisy_metric,
    run_undisturbed,
)
from flyball.lab.rigs.consumer.rig import LiveRun, Rig
from flyball.servers.rabbitmq import installed

LATE, NOISE = 2, 0.3
NOISY_SAMPLES = 40
TITLE = "A consumer on RabbitMQ under disturbances, noise, delay and drift"


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[Rig, Contender, Metric], LiveRun]
    judge: Callable[[LiveRun], float]
    figure: str = "samples until back within ±10 %"
    late: int = 0
    noise: float = 0.0

    def metric(self, seed: int) -> Metric:
        return noisy_metric(self.noise, seed) if self.noise else late_metric(self.late)


CASES = (
    Case(SLOWER_HANDLERS.name, SLOWER_HANDLERS.run, SLOWER_HANDLERS.recovery),
    Case(BURST.name, BURST.run, BURST.recovery),
    Case(
        f"{SLOWER_HANDLERS.name}, the metric {LATE} samples late",
        SLOWER_HANDLERS.run,
        SLOWER_HANDLERS.recovery,
        late=LATE,
    ),
    Case(DRIFTING.name, DRIFTING.run, DRIFTING.recovery, "longest time outside ±10 %, samples"),
    Case(
        f"rate metric with {NOISE:.0%} noise",
        lambda rig, contender, metric: run_undisturbed(rig, contender, metric, samples=NOISY_SAMPLES),
        lambda run: float(run.rate[ONSET:].std()) / GOAL,
        "std of the true rate / goal",
        noise=NOISE,
    ),
)


def run(context: ExperimentContext) -> Report:
    if not installed():
        return Report(TITLE, ["Not run: RabbitMQ is not on this machine (apt-get install rabbitmq-server)."])
    cases = CASES[:2] if context.quick else CASES
    figure, axes = new_figure(rows=len(cases), row_height_in=1.9)
    rows, data = [], {}
    with Rig() as rig:
        for axis, case in zip(axes, cases, strict=True):
            by_controller: dict[str, float] = {}
            for name, make in CONTROLLERS.items():
                live = case.run(rig, Contender(name, make(case.late)), case.metric(context.seed))
                by_controller[name] = case.judge(live)
                axis.plot(live.time, live.rate, color=COLOURS[name], linewidth=1.0, label=name)
            axis.axhline(GOAL, color=MEASURED, linestyle="--", linewidth=0.8)
            axis.set_ylim(0.0, 800.0)
            axis.set_ylabel("msg/s")
            axis.set_title(case.name, fontsize=9)
            rows.append((case.name, case.figure, *by_controller.values()))
            data[case.name] = {"figure": case.figure, **by_controller}
            context.note(
                f"{case.name}: " + ", ".join(f"{name} {value:.3g}" for name, value in by_controller.items())
            )
    axes[0].legend(frameon=False, fontsize=8, ncols=4, loc="upper right")
    axes[-1].set_xlabel("time in s")
    return Report(
        title=TITLE,
        body=[
            f"Goal {GOAL:.0f} msg/s, 1 s samples, one run each; a disturbance sets in after {ONSET} samples. The "
            f"plant is a consumer on a real queue behind 13.4 ms of round trip; the network's delay lets it "
            f"drift. The experiment prefetch_disturbances explains each row and repeats it on the twin.",
            Table(("what happens", "figure", *CONTROLLERS), rows),
            Picture("runs", "One run of each; dashed: the goal", figure),
        ],
        data={"cases": data},
    )
