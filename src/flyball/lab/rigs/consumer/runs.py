"""Repeated runs of all contenders on one plant; medians with the lowest and highest run beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from flyball.lab.bench import BenchContext, Better, Row
from flyball.lab.rigs.consumer.contenders import DEFAULT, P_GAIN, PRINTED, Contender

_IN_CASES = {PRINTED: "S1's PI", "printed PID": "S1's PID", f"printed P, Kp={P_GAIN}": f"S1's P, Kp={P_GAIN}"}
"""Contenders whose name in cases is an older one: results of different commits are compared by case."""
START = 3  # samples at the start that deviation and mean leave out
Figures: TypeAlias = dict[str, float]
OneRun: TypeAlias = Callable[[Contender, int], Figures]


def repeat(
    context: BenchContext, contenders: Sequence[Contender], one: OneRun, repeats: int
) -> dict[str, list[Figures]]:
    """Run all contenders alternately, so that all meet the same conditions; when quick, the others only once."""
    figures_by_contender: dict[str, list[Figures]] = {contender.name: [] for contender in contenders}
    for repetition in range(repeats):
        for contender in contenders:
            if context.quick and repetition and contender.name != DEFAULT:
                continue
            figures = one(contender, repetition)
            figures_by_contender[contender.name].append(figures)
            text = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
            context.note(f"  {contender.name}: {text}")
    return figures_by_contender


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
    """Yield every contender's medians, ours with their verdicts, each with its lowest and highest run."""
    for name in next(iter(found.values()))[0]:
        unit = units.get(name, "fraction")
        better: Better = "higher" if name in higher else "lower"
        for contender, runs in found.items():
            ours = contender == DEFAULT
            label = f"{case} {name}" if ours else f"{case} {name}, {_IN_CASES.get(contender, contender)}"
            goal = goals.get(name) if ours else None
            yield context.row(label, median(runs, name), unit, goal=goal, better=better)
            if len(runs) > 1:
                values = [run[name] for run in runs]
                yield context.row(f"{label}, lowest run", min(values), unit)
                yield context.row(f"{label}, highest run", max(values), unit)
