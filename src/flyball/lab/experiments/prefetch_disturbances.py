"""Prefetch: workload profiles, disturbances, noise, late metrics and drift (future work of Rosa and Cavalcanti).

The prefetch paper (docs/references.md) ends with what it left out: models per workload profile, disturbances
such as workload peaks, noise and delay of the metric, other controllers. Each is a row here: what happens to the
consumer, and how the printed PI, a PI per profile (gain-scheduled on the measured residence time), the
self-tuning controller and our default respond.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyball.consumer.policy.goals import RESIDENCE_S, ConsumerMeasurement
from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.step import Controller
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import MEASURED, new_figure
from flyball.lab.rigs.consumer import figures
from flyball.lab.rigs.consumer.contenders import PRINTED_PI, self_tuning
from flyball.twin.consumer import ConsumerPlant
from flyball.twin.consumer_loop import ConsumerRun, late, noisy, run_consumer
from flyball.twin.workload import During, Normal, Together

GOAL = 400.0
ONSET, SAMPLES = 30, 110
WANDER = 0.03
COLOURS = {
    "printed PI": "#555555",
    "PI per profile": "#009e73",
    "self-tuning": "#d55e00",
    "our default": "#0072b2",
}


def _per_profile() -> GainScheduled:
    """Integral action with the pole 0.5 in each profile: Ki = 0.5 × residence time, the inverse of the gain."""
    borders = (0.0, 0.012, 0.024, 0.048, 0.096)
    typical = (0.008, 0.017, 0.034, 0.068, 0.136)
    regions = tuple(Region(above, kp=0.0, ki=0.5 * s) for above, s in zip(borders, typical, strict=True))
    return GainScheduled(regions, by="disturbance", index=RESIDENCE_S, hysteresis=0.001)


CONTROLLERS: dict[str, Callable[[int], Controller[Any] | None]] = {  # argument: samples that metrics are late
    "printed PI": lambda _: PRINTED_PI,
    "PI per profile": lambda _: _per_profile(),
    "self-tuning": self_tuning,
    "our default": lambda _: None,
}


@dataclass(frozen=True)
class Case:
    name: str
    plant: ConsumerPlant
    figure: str
    sensor: Callable[[int], Callable[[ConsumerMeasurement], ConsumerMeasurement]] | None = None
    late: int = 0


def _cases() -> list[Case]:
    def profile(t: float) -> float:
        return (0.001, 0.030, 0.004)[min(2, int(t // ONSET))]

    def drifting(t: float) -> float:
        part = min(1.0, max(0.0, t - ONSET) / 60.0)
        return 0.040 * math.exp(-part * math.log(3.0))

    slower = ConsumerPlant(handling_s=lambda t: 0.010 if t < ONSET else 0.020, handlers=64, wander=WANDER)
    few, many = Normal(0.05, 0.005, sources=6), Normal(0.05, 0.005, sources=24)
    return [
        Case(
            "profiles: handlers of 1, 30, 4 ms",
            ConsumerPlant(handling_s=profile, handlers=64, wander=WANDER),
            "within",
        ),
        Case("handler time × 2", slower, "recovery"),
        Case(
            "publisher burst × 5",
            ConsumerPlant(publishers=Together((few, During(many, ONSET))), wander=WANDER),
            "recovery",
        ),
        Case("gain × 3 in 60 s", ConsumerPlant(round_trip_s=drifting, wander=WANDER), "longest"),
        Case("handler time × 2, metrics 2 samples late", slower, "recovery", lambda _: late(2), late=2),
        Case("rate metric with 30 % noise", ConsumerPlant(wander=WANDER), "std", lambda seed: noisy(0.3, seed)),
    ]


def _figure(case: Case, run: ConsumerRun) -> float:
    if case.figure == "recovery":
        return figures.settled(run.rate, run.goal, ONSET)
    if case.figure == "longest":
        return figures.longest_outside(run.rate, run.goal, ONSET)
    if case.figure == "within":
        return figures.within(run.rate[5:], run.goal[5:])
    return float(run.rate[10:].std()) / GOAL


WORDS = {
    "recovery": "samples until back within ±10 %",
    "longest": "longest time outside ±10 %, samples",
    "within": "share of samples within ±10 %",
    "std": "std of the true rate / goal",
}


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (2 if context.quick else 10))
    cases = _cases()
    figure, axes = new_figure(rows=len(cases), row_height_in=1.9)
    rows, data = [], {}
    for axis, case in zip(axes, cases, strict=True):
        by_controller: dict[str, float] = {}
        for name, make in CONTROLLERS.items():
            runs = [
                run_consumer(
                    case.plant,
                    f"rate={GOAL}",
                    make(case.late),
                    samples=SAMPLES,
                    sensor=None if case.sensor is None else case.sensor(seed),
                    seed=seed,
                )
                for seed in seeds
            ]
            by_controller[name] = float(np.median([_figure(case, run) for run in runs]))
            axis.plot(runs[0].time, runs[0].rate, color=COLOURS[name], linewidth=1.0, label=name)
        axis.axhline(GOAL, color=MEASURED, linestyle="--", linewidth=0.8)
        axis.set_ylim(0.0, 800.0)
        axis.set_ylabel("msg/s")
        axis.set_title(case.name, fontsize=9)
        rows.append((case.name, WORDS[case.figure], *by_controller.values()))
        data[case.name] = {"figure": WORDS[case.figure], **by_controller}
        context.note(f"{case.name}: " + ", ".join(f"{name} {value:.3g}" for name, value in by_controller.items()))
    axes[0].legend(frameon=False, fontsize=8, ncols=4, loc="upper right")
    axes[-1].set_xlabel("time in s")
    return Report(
        title="A consumer under changing workloads, disturbances, noise, delay and drift",
        body=[
            f"Goal {GOAL:.0f} msg/s, 1 s samples, {len(seeds)} runs each, medians; a disturbance sets in at "
            f"{ONSET} s. The plant is a consumer with 13.4 ms of round trip, message by message; its residence "
            f"time wanders by {100 * WANDER:.0f} % from second to second.",
            Table(("what happens", "figure", *CONTROLLERS), rows),
            Picture("runs", "One run of each; dashed: the goal", figure),
            "The printed PI was designed for one gain; where the gain is another it is slow or lively. A PI per "
            "profile, switched by the measured residence time without a bump, has the right gain in each. The "
            "default goes further: the residence time *is* the inverse gain, so goal × residence is the window "
            "itself, and feedback only trims. While no messages wait the window has no effect, so every "
            "controller holds its state (the consumer reports such samples as starved) and no loop winds up. The "
            "noise figure is about the rate metric alone: a noisy residence time would reach the window directly. "
            "Self-tuning starts from the printed gains. It assumes a plant without an offset that settles within "
            "a sample, so every sample improves its estimate of the gain, and every tenth brings verified gains: "
            "it follows the drift and handles a slower handler as well as a PI per profile. Designed for metrics "
            "that come two samples late it is careful, and a noisy rate reaches its gains and its command alike.",
        ],
        data={"cases": data, "runs": len(seeds)},
    )
