"""By load, in the twin: how even members are utilised after one slows down, and what jitter moves.

Groups are random: 3 to 12 members that differ in speed, 12 to 144 queues. `load spread`: the first member
becomes three times slower, and counted are three decisions; groups whose heaviest queue is more than a fair
share are judged beside the best assignment there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.groups.best_load import least_largest_utilisation
from flyball.twin.groups.cases import heavy_case, random_case
from flyball.twin.groups.load_run import LoadLoop, run_load
from flyball.twin.groups.plant import Pattern
from flyball.twin.groups.published import FilteredLoad, RelativeBand

_SLOWER_AT_S, _DECISIONS_S = 607.0, 3 * 20.0
_RATIO = "largest / mean utilisation"


def cases(context: BenchContext) -> Iterator[Row]:
    seeds = range(context.seed, context.seed + (6 if context.quick else 30))
    yield from _spread(context, seeds)
    yield from _heavy(context, seeds)
    yield from _jitter(context, seeds)


def _spread(context: BenchContext, seeds: range) -> Iterator[Row]:
    found: dict[str, list[float]] = {"ours": [], "filtered": []}
    for seed in seeds:
        case = random_case(seed, utilisation=0.5, slower_at_s=_SLOWER_AT_S)
        for name, balancer in (("ours", LoadLoop()), ("filtered", FilteredLoad())):
            run = run_load(case.plant(seed), balancer, _SLOWER_AT_S + _DECISIONS_S)
            found[name].append(run.spread_at(_SLOWER_AT_S + _DECISIONS_S))
    yield context.row("load spread", median(found["ours"]), _RATIO, goal=1.15)
    yield context.row(f"load spread, worst of {len(seeds)}", max(found["ours"]), _RATIO, goal=1.15)
    yield context.row(
        "load spread beside a filtered load",
        median(found["ours"]),
        _RATIO,
        peer=median(found["filtered"]),
        peer_name="Pulsar's ThresholdShedder, its rule in the twin",
    )


def _heavy(context: BenchContext, seeds: range) -> Iterator[Row]:
    ratios = []
    for seed in seeds:
        case = heavy_case(seed, slower_at_s=_SLOWER_AT_S)
        run = run_load(case.plant(seed), LoadLoop(), _SLOWER_AT_S + _DECISIONS_S)
        best = least_largest_utilisation(case.loaded(_SLOWER_AT_S))
        ratios.append(float(run.utilisation[-1].max() / best))
    yield context.row("load spread, a queue too heavy", median(ratios), "of the best possible", goal=1.15)
    yield context.row(
        f"load spread, a queue too heavy, worst of {len(seeds)}", max(ratios), "of the best possible", goal=1.15
    )


def _jitter(context: BenchContext, seeds: range) -> Iterator[Row]:
    patterns: tuple[Pattern, ...] = ("poisson", "bursts")
    for pattern in patterns:
        moves = []
        for seed in seeds[: 2 if context.quick else 10]:
            run = run_load(random_case(seed, pattern=pattern).plant(seed), LoadLoop(), 4_200.0)
            moves.append(run.moves_between(600.0, 4_200.0))
        yield context.row(f"stationary jitter, {pattern}", float(np.mean(moves)), "moves an hour", goal=0.0)
    ours, relative = [], []
    for seed in seeds[: 2 if context.quick else 10]:
        case = random_case(seed, utilisation=0.02)
        ours.append(run_load(case.plant(seed), LoadLoop(), 4_200.0).moves_between(600.0, 4_200.0))
        relative.append(run_load(case.plant(seed), RelativeBand(), 4_200.0).moves_between(600.0, 4_200.0))
    yield context.row(
        "stationary jitter at low load",
        float(np.mean(ours)),
        "moves an hour",
        peer=float(np.mean(relative)),
        peer_name="relative band of 10 %",
        goal=0.0,
    )
