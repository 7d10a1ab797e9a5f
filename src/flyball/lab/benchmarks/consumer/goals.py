"""How a goal is held: one goal, a sequence of goals, and one goal with a noisy metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flyball.consumer.consumer import Consumer
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.consumer import figures
from flyball.lab.rigs.consumer.contenders import DEFAULT, Contender
from flyball.lab.rigs.consumer.disturbances import GOAL, HANDLERS, late_metric, noisy_metric, run_undisturbed
from flyball.lab.rigs.consumer.rig import Rig, run_live
from flyball.lab.rigs.consumer.runs import START, Figures, median, repeat, rows

GOALS_IN_TURN = (800.0, 2400.0, 1600.0)
TOP_SHARE = 0.8  # 2400 of the published runs becomes this part of the top of the linear range
WITHIN, NRMSE = 0.92, 0.08
NOISE = 0.3


def one_goal(context: BenchContext, rig: Rig, contenders: Sequence[Contender], repeats: int) -> Iterator[Row]:
    samples = 10 if context.quick else 20

    def one(contender: Contender, _: int) -> Figures:
        run = run_undisturbed(rig, contender, late_metric(0), samples=samples)
        late = run.rate[START:]
        return {
            "std": float(late.std()) / GOAL,
            "mean error": abs(float(late.mean()) / GOAL - 1.0),
            "settled": figures.settled(run.rate, run.goal),
            "overshoot": figures.overshoot(run.rate, run.goal),
        }

    goals = {"std": 0.07, "mean error": 0.01, "settled": 3.0, "overshoot": 0.15}
    yield from rows(context, "goal 400", repeat(context, contenders, one, repeats), goals, {"settled": "samples"})


def goals_in_turn(
    context: BenchContext, rig: Rig, contenders: Sequence[Contender], repeats: int, top_rate: float
) -> Iterator[Row]:
    """Change the goal every 12 samples (8 when quick).

    The published runs have 100 samples for each goal; here a slow change to the next goal weighs eight times as
    much.
    """
    each = 8 if context.quick else 12
    goals = [goal * TOP_SHARE * top_rate / GOALS_IN_TURN[1] for goal in GOALS_IN_TURN]

    def one(contender: Contender, _: int) -> Figures:
        samples = START + 3 * each
        queue = rig.queue(fill=int(1.3 * sum(goals) * each))

        async def next_goal(k: int, consumer: Consumer) -> None:
            index, rest = divmod(k - START, each)
            if k > START and rest == 0 and index < len(goals):
                consumer.goal = f"rate={goals[index]}"

        run = run_live(
            rig,
            queue,
            f"rate={goals[0]}",
            samples=samples,
            controller=contender.controller,
            concurrency=HANDLERS,
            during=next_goal,
            **contender.options,
        )
        rate, goal, command = run.rate[START:], run.goal[START:], run.command[START:]
        return {
            "within 10": figures.within(rate, goal),
            "NRMSE": figures.nrmse(rate, goal),
            "moves": figures.moves(command),
        }

    found = repeat(context, contenders, one, repeats)
    targets = {"within 10": WITHIN, "NRMSE": NRMSE}
    yield from rows(context, "goals in turn", found, targets, {"moves": "slots"}, higher=("within 10",))
    reach = [
        name
        for name, runs in found.items()
        if median(runs, "within 10") >= WITHIN and median(runs, "NRMSE") <= NRMSE
    ]
    others = {name: median(found[name], "moves") for name in reach if name != DEFAULT}
    if DEFAULT in reach and others:
        least = min(others, key=lambda name: others[name])
        yield context.row(
            "goals in turn moves, beside the least that reach it",
            median(found[DEFAULT], "moves"),
            "slots",
            peer=others[least],
            peer_name=least,
            goal=1.0,
        )


def noise(context: BenchContext, rig: Rig, contenders: Sequence[Contender], repeats: int) -> Iterator[Row]:
    samples = 14 if context.quick else 40

    def one(contender: Contender, repetition: int) -> Figures:
        metric = noisy_metric(NOISE, (context.seed, repetition))  # the same noise for every contender
        run = run_undisturbed(rig, contender, metric, samples=samples)
        return {"spread": float(run.rate[START:].std()) / GOAL}

    yield from rows(context, "noise", repeat(context, contenders, one, repeats), {"spread": 0.12}, {})
