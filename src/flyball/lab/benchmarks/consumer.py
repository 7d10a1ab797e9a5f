"""Consumers that hold a rate: real RabbitMQ behind 6.7 ms of one-way delay, all contenders on the same plant.

Handlers take 1 ms, two at a time; an open-loop run first finds the plant's gain and the top of its linear range.
Control and judging samples are 1 s, and the rate counts messages handed to handlers. Every figure is the median of
the repetitions, with the lowest and the highest run beside it; when quick, the others run once beside our three.
In the goals in turn the first three samples, in which the consumer connects, are left out. "… as told late" and
"noise": the metric that the loop is given, not the plant, is late or noisy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flyball.consumer.consumer import Consumer
from flyball.control.controllers.fixed import Fixed
from flyball.lab import consumer_figures as figures
from flyball.lab.bench import BenchContext, Row
from flyball.lab.consumer_contenders import DEFAULT, FIXED, PRINTED, Contender, contenders, open_loop, our_pi
from flyball.lab.consumer_rig import ONE_WAY_S, LiveRun, Rig, run_live

GOAL = 400.0
GOALS_IN_TURN = (800.0, 2400.0, 1600.0)
TOP_SHARE = 0.8  # 2400 of the published runs becomes this part of the top of the linear range
HANDLERS = 2
START = 3  # samples at the start that deviation and mean leave out
DISTURBED = 8  # the sample after which a disturbance sets in
SLOW_HANDLING_S = 0.010
DRIFT_S, DRIFT = 60, 3.0
OVERHEAD_WINDOW = 60
Figures = dict[str, float]


def run(context: BenchContext) -> Iterator[Row]:
    repeats = 3
    with Rig() as rig:
        windows = tuple(float(w) for w in ((1, *range(2, 29, 2)) if context.quick else range(1, 33)))
        seen = open_loop(rig, windows, concurrency=HANDLERS)
        static_pi, fit = our_pi(*seen)
        gain, top = fit.model.gain, fit.linear_range[1]
        top_rate = gain * top
        context.note(f"  plant: {fit.model}, R² {fit.r2:.3f}, linear to {top:g} places, {top_rate:.0f} msg/s")
        yield context.row("plant gain", gain, "msg/s per place")
        yield context.row("plant R2", fit.r2, "fraction", goal=0.8, better="higher")
        everybody = contenders(GOAL, gain, static_pi)
        core = [one for one in everybody if one.name in (DEFAULT, PRINTED, FIXED)]
        yield from _goal_400(context, rig, core if context.quick else everybody, repeats)
        scale = TOP_SHARE * top_rate / GOALS_IN_TURN[1]
        turn_core = [one for one in core if one.name != FIXED]
        yield from _goals_in_turn(context, rig, turn_core if context.quick else everybody, repeats, scale)
        pair = [one for one in everybody if one.name in (DEFAULT, PRINTED)]
        yield from _noise(context, rig, pair, repeats)
        ours = [one for one in pair if one.name == DEFAULT]
        yield from _disturbances(context, rig, ours if context.quick else pair, 1 if context.quick else repeats)
        yield from _overhead(context, rig)


# --- the figures ------------------------------------------------------------------------------------------------


def _goal_400(context: BenchContext, rig: Rig, who: Sequence[Contender], repeats: int) -> Iterator[Row]:
    samples = 12 if context.quick else 20

    def one(contender: Contender, _: int) -> Figures:
        queue = rig.queue(fill=int(1.6 * GOAL * samples))
        run = _live(rig, queue, GOAL, samples, contender)
        late = run.rate[START:]
        return {
            "std": float(late.std()) / GOAL,
            "mean error": abs(float(late.mean()) / GOAL - 1.0),
            "settled": figures.settled(run.rate, run.goal),
            "overshoot": figures.overshoot(run.rate, run.goal),
        }

    goals = {"std": 0.07, "mean error": 0.01, "settled": 3.0, "overshoot": 0.15}
    units = {"settled": "samples"}
    yield from _rows(context, "goal 400", _repeat(context, who, one, repeats), goals, units)


def _goals_in_turn(
    context: BenchContext, rig: Rig, who: Sequence[Contender], repeats: int, scale: float
) -> Iterator[Row]:
    each = 8 if context.quick else 20
    goals = [goal * scale for goal in GOALS_IN_TURN]

    def one(contender: Contender, _: int) -> Figures:
        samples = START + 3 * each
        queue = rig.queue(fill=int(1.3 * sum(goals) * each))

        async def next_goal(k: int, consumer: Consumer) -> None:
            place, rest = divmod(k - START, each)
            if k > START and rest == 0 and place < len(goals):
                consumer.goal = f"rate={goals[place]}"

        run = _live(rig, queue, goals[0], samples, contender, during=next_goal)
        rate, goal, command = run.rate[START:], run.goal[START:], run.command[START:]
        return {
            "within 10": figures.within(rate, goal),
            "NRMSE": figures.nrmse(rate, goal),
            "moves": figures.moves(command),
        }

    found = _repeat(context, who, one, repeats)
    targets = {"within 10": 0.92, "NRMSE": 0.08}
    yield from _rows(context, "goals in turn", found, targets, {"moves": "places"}, higher=("within 10",))
    reach = [name for name in found if _median(found[name], "within 10") >= targets["within 10"]]
    others = {name: _median(found[name], "moves") for name in reach if name != DEFAULT}
    if DEFAULT in reach and others:
        least = min(others, key=lambda name: others[name])
        ours = _median(found[DEFAULT], "moves")
        yield context.row(
            "goals in turn moves, beside the least that reach it",
            ours,
            "places",
            peer=others[least],
            peer_name=least,
            goal=1.0,
        )


def _noise(context: BenchContext, rig: Rig, who: Sequence[Contender], repeats: int) -> Iterator[Row]:
    samples = 14 if context.quick else 40

    def one(contender: Contender, repetition: int) -> Figures:
        rng = np.random.default_rng((context.seed, repetition))  # the same noise for every contender
        queue = rig.queue(fill=int(2.0 * GOAL * samples))
        run = _live(
            rig, queue, GOAL, samples, contender, metric=lambda rate: rate * max(0.0, 1.0 + rng.normal(0.0, 0.3))
        )
        return {"spread": float(run.rate[START:].std()) / GOAL}

    yield from _rows(context, "noise", _repeat(context, who, one, repeats), {"spread": 0.12}, {})


def _disturbances(context: BenchContext, rig: Rig, who: Sequence[Contender], repeats: int) -> Iterator[Row]:
    samples = DISTURBED + 11

    def slower(contender: Contender, late: int) -> Figures:
        told: list[float] = []

        def metric(rate: float) -> float:
            told.append(rate)
            return told[max(0, len(told) - 1 - late)]

        queue = rig.queue(fill=int(1.6 * GOAL * samples))
        run = _live(
            rig,
            queue,
            GOAL,
            samples,
            contender,
            handlers=None,
            handling_s=lambda k: SLOW_HANDLING_S * (2.0 if k > DISTURBED else 1.0),
            metric=metric,
        )
        return {"recovery": figures.settled(run.rate, run.goal, DISTURBED)}

    def burst(contender: Contender, _: int) -> Figures:
        queue = rig.queue()
        rig.tell(publishers=6, gap_s=0.05)  # 120/s: below the goal, so the consumer starves

        async def more(k: int, _consumer: Consumer) -> None:
            if k == DISTURBED:
                await rig.tell_soon(publishers=30, gap_s=0.05)

        try:
            run = _live(rig, queue, GOAL, samples, contender, during=more)
        finally:
            rig.tell(publishers=0)
        return {"recovery": figures.settled(run.rate, run.goal, DISTURBED)}

    def drift(contender: Contender, _: int) -> Figures:
        """From three times the residence time to the usual one, by the network's delay."""
        handled_s = 1.0 / 60.0 - 2.0 * ONE_WAY_S
        far_s = (DRIFT / 60.0 - handled_s) / 2.0
        length = DISTURBED + DRIFT_S + 5
        queue = rig.queue(fill=int(1.3 * GOAL * length))
        rig.tell(delay_s=far_s)

        async def nearer(k: int, _consumer: Consumer) -> None:
            part = min(1.0, max(0.0, (k - DISTURBED) / DRIFT_S))
            residence_s = DRIFT ** (1.0 - part) / 60.0
            await rig.tell_soon(delay_s=max(ONE_WAY_S, (residence_s - handled_s) / 2.0))

        run = _live(rig, queue, GOAL, length, contender, during=nearer)
        return {"recovery": figures.longest_outside(run.rate, run.goal, DISTURBED)}

    kinds: list[tuple[str, Callable[[Contender, int], Figures], float]] = [
        ("handler time x 2", lambda contender, _: slower(contender, 0), 5.0),
        ("publisher burst x 5", burst, 5.0),
    ]
    if not context.quick:
        kinds.append(("handler time x 2, as told 2 samples late", lambda contender, _: slower(contender, 2), 10.0))
        kinds.append(("gain drifting x 3 in 60 s", drift, 5.0))
    for case, one, goal in kinds:
        found = _repeat(context, who, one, repeats)
        yield from _rows(context, case, found, {"recovery": goal}, {"recovery": "samples"})


def _overhead(context: BenchContext, rig: Rig) -> Iterator[Row]:
    """Processor time a message at saturation, with and without the loop, in turn; throughput is its inverse.

    Wall time would mostly compare two moments of a shared machine.
    """
    loop: dict[str, Any] = {"goal": "rate=1000000", "controller": Fixed(float(OVERHEAD_WINDOW))}
    count = 20_000 if context.quick else 60_000
    costs: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3 if context.quick else 7):
        for looped in (False, True):
            queue = rig.queue(fill=count)
            costs[looped].append(_cpu_s(rig.direct_url, queue, count, loop if looped else {}))
    without, with_loop = (float(np.median(costs[looped])) for looped in (False, True))
    yield context.row("loop overhead", max(0.0, 1.0 - without / with_loop), "fraction", goal=0.01)
    yield context.row("throughput at saturation, by processor time", 1.0 / with_loop, "msg/s")


def _cpu_s(url: str, queue: str, count: int, options: dict[str, Any]) -> float:
    """Processor time a message, over the last nine tenths of `count` messages: connecting is not the loop's."""
    marks: dict[int, float] = {}
    handed, done = 0, asyncio.Event()
    first = count // 10

    async def handle(_message: Any) -> None:
        nonlocal handed
        handed += 1
        if handed in (first, count):
            marks[handed] = time.process_time()
            if handed == count:
                done.set()

    async def main() -> None:
        async with Consumer(url, queue=queue, handler=handle, window=OVERHEAD_WINDOW, **options):
            await asyncio.wait_for(done.wait(), 120.0)

    asyncio.run(main())
    return (marks[count] - marks[first]) / (count - first)


# --- running and writing down -----------------------------------------------------------------------------------


def _live(
    rig: Rig,
    queue: str,
    goal: float,
    samples: int,
    contender: Contender,
    *,
    handlers: int | None = HANDLERS,
    **more: Any,
) -> LiveRun:
    return run_live(
        rig,
        queue,
        f"rate={goal}",
        samples=samples,
        controller=contender.controller,
        concurrency=handlers,
        **contender.options,
        **more,
    )


def _repeat(
    context: BenchContext, who: Sequence[Contender], one: Callable[[Contender, int], Figures], repeats: int
) -> dict[str, list[Figures]]:
    """All contenders in turn, and that again and again: so each sees the machine at all times."""
    found: dict[str, list[Figures]] = {contender.name: [] for contender in who}
    for repetition in range(repeats):
        for contender in who:
            if context.quick and repetition and contender.name != DEFAULT:
                continue  # when quick, the others run once
            figures_found = one(contender, repetition)
            found[contender.name].append(figures_found)
            said = ", ".join(f"{name} {value:.3g}" for name, value in figures_found.items())
            context.note(f"  {contender.name}: {said}")
    return found


def _median(runs: Sequence[Figures], name: str) -> float:
    return figures.median_and_range([run[name] for run in runs])[0]


def _rows(
    context: BenchContext,
    case: str,
    found: dict[str, list[Figures]],
    goals: dict[str, float],
    units: dict[str, str],
    *,
    higher: Sequence[str] = (),
) -> Iterator[Row]:
    """Ours with its verdict, its lowest and highest run, then every contender's median."""
    for name in found[DEFAULT][0]:
        unit = units.get(name, "fraction")
        middle, low, high = figures.median_and_range([run[name] for run in found[DEFAULT]])
        better = "higher" if name in higher else "lower"
        yield context.row(f"{case} {name}", middle, unit, goal=goals.get(name), better=better)  # type: ignore[arg-type]  # one of the two
        yield context.row(f"{case} {name}, lowest run", low, unit)
        yield context.row(f"{case} {name}, highest run", high, unit)
        for contender, runs in found.items():
            if contender != DEFAULT:
                yield context.row(f"{case} {name}, {contender}", _median(runs, name), unit)
