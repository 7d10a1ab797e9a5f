"""Disturbances at a goal of 400, each with a current metric and with one that is two samples late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.consumer.contenders import DEFAULT, Contender, self_tuning
from flyball.lab.rigs.consumer.disturbances import (
    BURST,
    DRIFTING,
    SLOWER_HANDLERS,
    START,
    Disturbance,
    late_metric,
)
from flyball.lab.rigs.consumer.rig import Rig
from flyball.lab.rigs.consumer.runs import Figures, repeat, rows

LATE = 2


def cases(context: BenchContext, rig: Rig, contenders: Sequence[Contender], repeats: int) -> Iterator[Row]:
    """Run our default and the printed PI; when quick, without the drift, and all but the first with ours alone."""
    if context.quick:
        ours = [one for one in contenders if one.name == DEFAULT]
        yield from _case(context, rig, SLOWER_HANDLERS, contenders, repeats, late=0)
        yield from _case(context, rig, BURST, ours, repeats, late=0)
        yield from _case(context, rig, SLOWER_HANDLERS, ours, repeats, late=LATE)
        return
    for kind in (SLOWER_HANDLERS, BURST, DRIFTING):
        compared = [*contenders, Contender("self-tuning", self_tuning())] if kind is DRIFTING else contenders
        yield from _case(context, rig, kind, compared, repeats, late=0)
    for kind in (START, SLOWER_HANDLERS, BURST, DRIFTING):
        yield from _case(context, rig, kind, contenders, repeats, late=LATE)


def _case(
    context: BenchContext, rig: Rig, kind: Disturbance, contenders: Sequence[Contender], repeats: int, *, late: int
) -> Iterator[Row]:
    name = f"{kind.name}, as told {late} samples late" if late else kind.name

    def one(contender: Contender, _: int) -> Figures:
        return {"recovery": kind.recovery(kind.run(rig, contender, late_metric(late)))}

    found = repeat(context, contenders, one, repeats)
    goal = 10.0 if late else 5.0
    yield from rows(context, name, found, {"recovery": goal}, {"recovery": "samples"})
