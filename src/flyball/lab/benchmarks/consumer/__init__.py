"""Consumers that hold a rate: real RabbitMQ behind 6.7 ms of one-way delay, all contenders on the same plant.

Handlers take 1 ms, two at a time; an open-loop run first finds the plant's gain and the top of its linear range.
Control and judging samples are 1 s, and the rate counts messages handed to handlers. Every figure is the median of
the repetitions, with the lowest and the highest run beside it; when quick, the others run once beside ours. In
`goals in turn` the first three samples, in which the consumer connects, are left out. `… as told late` and
`noise`: the metric of the loop, not the plant, is late or noisy. The group `zoo` runs in the twin,
`zoo-live` on the embedded broker.
"""

from __future__ import annotations

from collections.abc import Iterator

from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.consumer import disturbances, goals, overhead, zoo, zoo_live
from flyball.lab.rigs.consumer.contenders import DEFAULT, PRINTED, contenders, open_loop, our_pi
from flyball.lab.rigs.consumer.disturbances import GOAL, HANDLERS
from flyball.lab.rigs.consumer.rig import Rig

CONTROL = ("goal", "goals-in-turn", "noise", "disturbances")
GROUPS = (*CONTROL, "overhead", "zoo", "zoo-live")


def run(context: BenchContext) -> Iterator[Row]:
    if context.wants("zoo"):
        yield from zoo.cases(context)
    if context.wants("zoo-live"):
        yield from zoo_live.cases(context)
    if not any(map(context.wants, (*CONTROL, "overhead"))):
        return
    with Rig() as rig:
        if any(map(context.wants, CONTROL)):
            yield from _control(context, rig)
        if context.wants("overhead"):
            yield from overhead.cases(context, rig)


def _control(context: BenchContext, rig: Rig) -> Iterator[Row]:
    """Run the cases on the plant of the prefetch paper, which an open-loop run identifies first."""
    quick = context.quick
    windows = tuple(float(w) for w in ((1, *range(2, 29, 2)) if quick else range(1, 33)))
    static_pi, fit = our_pi(*open_loop(rig, windows, concurrency=HANDLERS))
    gain, top = fit.model.gain, fit.linear_range[1]
    context.note(f"  plant: {fit.model}, R² {fit.r2:.3f}, linear to {top:g} slots, {gain * top:.0f} msg/s")
    yield context.row("plant gain", gain, "msg/s per slot")
    yield context.row("plant R2", fit.r2, "fraction", goal=0.8, better="higher")
    every = contenders(GOAL, gain, static_pi)
    pair = [contender for contender in every if contender.name in (DEFAULT, PRINTED)]
    if context.wants("goal"):
        yield from goals.one_goal(context, rig, pair if quick else every, 3)
    if context.wants("goals-in-turn"):
        yield from goals.goals_in_turn(context, rig, pair if quick else every, 3, gain * top)
    if context.wants("noise"):
        yield from goals.noise(context, rig, pair, 1 if quick else 3)
    if context.wants("disturbances"):
        yield from disturbances.cases(context, rig, pair, 1 if quick else 3)
