"""All contenders in turn on one plant, again and again; medians with the lowest and highest run beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from flyball.lab.bench import BenchContext, Better, Row
from flyball.lab.rigs.consumer.contenders import DEFAULT, Contender

START = 3  # samples at the start that deviation and mean leave out
Figures: TypeAlias = dict[str, float]
OneRun: TypeAlias = Callable[[Contender, int], Figures]


def repeat(context: BenchContext, who: Sequence[Contender], one: OneRun, repeats: int) -> dict[str, list[Figures]]:
    """Each contender sees the machine at all times; when quick, the others run once beside our repetitions."""
    found: dict[str, list[Figures]] = {contender.name: [] for contender in who}
    for repetition in range(repeats):
        for contender in who:
            if context.quick and repetition and contender.name != DEFAULT:
                continue
            figures = one(contender, repetition)
            found[contender.name].append(figures)
            said = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
            context.note(f"  {contender.name}: {said}")
    return found


def median(runs: Sequence[Figures], name: str) -> float:
    return float(np.median([run[name] for run in runs]))


def rows(
    context: BenchContext,
    case: str,
    found: dict[str, list[Figures]],
    goals: dict[str, float],
    units: dict[str, str],
    *,
    higher: Sequence[str] = (),
) -> Iterator[Row]:
    """Ours with its verdict, then every contender's median; each with its lowest and highest run."""
    for name in next(iter(found.values()))[0]:
        unit = units.get(name, "fraction")
        better: Better = "higher" if name in higher else "lower"
        for contender, runs in found.items():
            ours = contender == DEFAULT
            label = f"{case} {name}" if ours else f"{case} {name}, {contender}"
            goal = goals.get(name) if ours else None
            yield context.row(label, median(runs, name), unit, goal=goal, better=better)
            if len(runs) > 1:
                values = [run[name] for run in runs]
                yield context.row(f"{label}, lowest run", min(values), unit)
                yield context.row(f"{label}, highest run", max(values), unit)
