"""Disturbances of a consumer at a goal of 400: of the plant, and metrics that are noisy or late.

Live, on the rig, for the benchmark and the experiments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from flyball.consumer.consumer import Consumer
from flyball.lab.rigs.consumer import figures
from flyball.lab.rigs.consumer.contenders import Contender
from flyball.lab.rigs.consumer.rig import ONE_WAY_S, LiveRun, Rig, run_live

GOAL = 400.0
HANDLERS = 2
ONSET = 6  # the sample after which a disturbance sets in
SAMPLES = ONSET + 11
SLOW_HANDLING_S = 0.010
DRIFT_S, DRIFT = 60, 3.0
Metric: TypeAlias = Callable[[float], float]


def late_metric(samples: int) -> Metric:
    """A metric that reports the rate of `samples` samples ago."""
    rates: list[float] = []

    def metric(rate: float) -> float:
        rates.append(rate)
        return rates[max(0, len(rates) - 1 - samples)]

    return metric


def noisy_metric(share: float, seed: int | tuple[int, ...]) -> Metric:
    """A metric with a relative error of this standard deviation."""
    rng = np.random.default_rng(seed)
    return lambda rate: rate * max(0.0, 1.0 + rng.normal(0.0, share))


@dataclass(frozen=True)
class Disturbance:
    """One disturbance: `run` applies it to a contender, `recovery` is its effect on the rate, in samples."""

    name: str
    run: Callable[[Rig, Contender, Metric], LiveRun]
    lasts: bool = False

    def recovery(self, run: LiveRun) -> float:
        """Count the samples until the rate stays within ±10 % of the goal; of a lasting disturbance, the longest
        run of samples outside."""
        start = 0 if self is START else ONSET
        count = figures.longest_outside if self.lasts else figures.settled
        return count(run.rate, run.goal, start)


def _at_goal(rig: Rig, queue: str, contender: Contender, metric: Metric, samples: int, **more: Any) -> LiveRun:
    """Run a contender at the goal."""
    return run_live(
        rig,
        queue,
        f"rate={GOAL}",
        samples=samples,
        controller=contender.controller,
        metric=metric,
        **contender.options,
        **more,
    )


def run_undisturbed(rig: Rig, contender: Contender, metric: Metric, *, samples: int = SAMPLES) -> LiveRun:
    """Run a contender at the goal without any disturbance of the plant."""
    queue = rig.queue(fill=int(2.0 * GOAL * samples))
    return _at_goal(rig, queue, contender, metric, samples, concurrency=HANDLERS)


def _slower_handlers(rig: Rig, contender: Contender, metric: Metric) -> LiveRun:
    queue = rig.queue(fill=int(1.6 * GOAL * SAMPLES))
    return _at_goal(
        rig,
        queue,
        contender,
        metric,
        SAMPLES,
        handling_s=lambda k: SLOW_HANDLING_S * (2.0 if k > ONSET else 1.0),
    )


def _burst(rig: Rig, contender: Contender, metric: Metric) -> LiveRun:
    queue = rig.queue()
    rig.configure(publishers=6, gap_s=0.05)  # 120/s: below the goal, so the consumer starves

    async def more(k: int, _consumer: Consumer) -> None:
        if k == ONSET:
            await rig.configure_async(publishers=30, gap_s=0.05)

    try:
        return _at_goal(rig, queue, contender, metric, SAMPLES, concurrency=HANDLERS, during=more)
    finally:
        rig.configure(publishers=0)


def _drift(rig: Rig, contender: Contender, metric: Metric) -> LiveRun:
    """Let the residence time fall from three times the usual one, by the network's delay."""
    handled_s = 1.0 / 60.0 - 2.0 * ONE_WAY_S
    far_s = (DRIFT / 60.0 - handled_s) / 2.0
    length = ONSET + DRIFT_S + 5
    queue = rig.queue(fill=int(1.3 * GOAL * length))
    rig.configure(delay_s=far_s)

    async def nearer(k: int, _consumer: Consumer) -> None:
        part = min(1.0, max(0.0, (k - ONSET) / DRIFT_S))
        residence_s = DRIFT ** (1.0 - part) / 60.0
        await rig.configure_async(delay_s=max(ONE_WAY_S, (residence_s - handled_s) / 2.0))

    return _at_goal(rig, queue, contender, metric, length, concurrency=HANDLERS, during=nearer)


START = Disturbance("start", run_undisturbed)
SLOWER_HANDLERS = Disturbance("handler time x 2", _slower_handlers)
BURST = Disturbance("publisher burst x 5", _burst)
DRIFTING = Disturbance("gain drifting x 3 in 60 s", _drift, lasts=True)
