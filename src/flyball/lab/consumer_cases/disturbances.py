"""Disturbances at a goal of 400, each with the metric in time and told two samples late.

Recovery counts the samples until the rate is within ±10 % of the goal and stays; for the drift, which goes on for
a minute, it is the longest time outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from flyball.consumer.consumer import Consumer
from flyball.lab import consumer_figures as figures
from flyball.lab.bench import BenchContext, Row
from flyball.lab.consumer_cases.runs import GOAL, Figures, live, repeat, rows
from flyball.lab.consumer_contenders import DEFAULT, Contender, self_tuning
from flyball.lab.consumer_rig import ONE_WAY_S, Rig

ONSET = 8  # the sample after which a disturbance sets in
SAMPLES = ONSET + 11
SLOW_HANDLING_S = 0.010
DRIFT_S, DRIFT = 60, 3.0
LATE = 2
Metric: TypeAlias = Callable[[float], float]
Disturbed: TypeAlias = Callable[[Rig, Contender, Metric], Figures]


def cases(context: BenchContext, rig: Rig, who: Sequence[Contender], repeats: int) -> Iterator[Row]:
    kinds: dict[str, Disturbed] = {"handler time x 2": slower_handlers, "publisher burst x 5": burst}
    if not context.quick:
        kinds["gain drifting x 3 in 60 s"] = drift
    for case, disturbed in kinds.items():
        everybody = [*who, Contender("self-tuning", self_tuning())] if disturbed is drift else who
        yield from _case(context, rig, case, disturbed, everybody, repeats, late=0, goal=5.0)
    late_kinds = {"handler time x 2": slower_handlers} if context.quick else {"start": start, **kinds}
    for case, disturbed in late_kinds.items():
        told = f"{case}, as told {LATE} samples late"
        ours_at_least = [one for one in who if one.name == DEFAULT] if context.quick else who
        yield from _case(context, rig, told, disturbed, ours_at_least, repeats, late=LATE, goal=10.0)


def _case(
    context: BenchContext,
    rig: Rig,
    case: str,
    disturbed: Disturbed,
    who: Sequence[Contender],
    repeats: int,
    *,
    late: int,
    goal: float,
) -> Iterator[Row]:
    found = repeat(context, who, lambda contender, _: disturbed(rig, contender, _told_late(late)), repeats)
    yield from rows(context, case, found, {"recovery": goal}, {"recovery": "samples"})


def _told_late(samples: int) -> Metric:
    told: list[float] = []

    def metric(rate: float) -> float:
        told.append(rate)
        return told[max(0, len(told) - 1 - samples)]

    return metric


def start(rig: Rig, contender: Contender, metric: Metric) -> Figures:
    queue = rig.queue(fill=int(1.6 * GOAL * SAMPLES))
    run = live(rig, queue, GOAL, SAMPLES, contender, metric=metric)
    return {"recovery": figures.settled(run.rate, run.goal)}


def slower_handlers(rig: Rig, contender: Contender, metric: Metric) -> Figures:
    queue = rig.queue(fill=int(1.6 * GOAL * SAMPLES))
    run = live(
        rig,
        queue,
        GOAL,
        SAMPLES,
        contender,
        handlers=None,
        handling_s=lambda k: SLOW_HANDLING_S * (2.0 if k > ONSET else 1.0),
        metric=metric,
    )
    return {"recovery": figures.settled(run.rate, run.goal, ONSET)}


def burst(rig: Rig, contender: Contender, metric: Metric) -> Figures:
    queue = rig.queue()
    rig.tell(publishers=6, gap_s=0.05)  # 120/s: below the goal, so the consumer starves

    async def more(k: int, _consumer: Consumer) -> None:
        if k == ONSET:
            await rig.tell_soon(publishers=30, gap_s=0.05)

    try:
        run = live(rig, queue, GOAL, SAMPLES, contender, during=more, metric=metric)
    finally:
        rig.tell(publishers=0)
    return {"recovery": figures.settled(run.rate, run.goal, ONSET)}


def drift(rig: Rig, contender: Contender, metric: Metric) -> Figures:
    """From three times the residence time to the usual one, by the network's delay."""
    handled_s = 1.0 / 60.0 - 2.0 * ONE_WAY_S
    far_s = (DRIFT / 60.0 - handled_s) / 2.0
    length = ONSET + DRIFT_S + 5
    queue = rig.queue(fill=int(1.3 * GOAL * length))
    rig.tell(delay_s=far_s)

    async def nearer(k: int, _consumer: Consumer) -> None:
        part = min(1.0, max(0.0, (k - ONSET) / DRIFT_S))
        residence_s = DRIFT ** (1.0 - part) / 60.0
        await rig.tell_soon(delay_s=max(ONE_WAY_S, (residence_s - handled_s) / 2.0))

    run = live(rig, queue, GOAL, length, contender, during=nearer, metric=metric)
    return {"recovery": figures.longest_outside(run.rate, run.goal, ONSET)}
