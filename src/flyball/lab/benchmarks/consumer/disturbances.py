"""Disturbances at a goal of 400, each with the metric in time and told two samples late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.consumer.contenders import DEFAULT, Contender, self_tuning
from flyball.lab.rigs.consumer.disturbances import BURST, DRIFTING, SLOWER_HANDLERS, START, Disturbed, told_late
from flyball.lab.rigs.consumer.rig import Rig
from flyball.lab.rigs.consumer.runs import Figures, repeat, rows

LATE = 2


def cases(context: BenchContext, rig: Rig, who: Sequence[Contender], repeats: int) -> Iterator[Row]:
    """`who` are ours and the printed PI; when quick, no drift, and all but the first are met by ours alone."""
    if context.quick:
        ours = [one for one in who if one.name == DEFAULT]
        yield from _case(context, rig, SLOWER_HANDLERS, who, repeats, late=0)
        yield from _case(context, rig, BURST, ours, repeats, late=0)
        yield from _case(context, rig, SLOWER_HANDLERS, ours, repeats, late=LATE)
        return
    for kind in (SLOWER_HANDLERS, BURST, DRIFTING):
        everybody = [*who, Contender("self-tuning", self_tuning())] if kind is DRIFTING else who
        yield from _case(context, rig, kind, everybody, repeats, late=0)
    for kind in (START, SLOWER_HANDLERS, BURST, DRIFTING):
        yield from _case(context, rig, kind, who, repeats, late=LATE)


def _case(
    context: BenchContext, rig: Rig, kind: Disturbed, who: Sequence[Contender], repeats: int, *, late: int
) -> Iterator[Row]:
    name = f"{kind.name}, as told {late} samples late" if late else kind.name

    def one(contender: Contender, _: int) -> Figures:
        return {"recovery": kind.recovery(kind.run(rig, contender, told_late(late)))}

    found = repeat(context, who, one, repeats)
    goal = 10.0 if late else 5.0
    yield from rows(context, name, found, {"recovery": goal}, {"recovery": "samples"})
