"""The zoo: random plants and days in the twin, our default beside the best fixed window and published controllers.

For each scenario fixed windows are swept; the best of them *for that scenario*, which nobody knows beforehand, is
what counts as 1. The prefetch paper's PI and the proportional rule need a rate: where the goal is capacity or
latency they are told the handlers' true capacity. Limiters know no rate, so they do not compete for one. `held`:
of all samples in which some fixed window held the goal, the share in which it was held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from flyball.consumer.policy.goals import Latency, Rate
from flyball.control.controllers.proportional_rule import ProportionalRule
from flyball.control.step import Controller
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.consumer.contenders import DEFAULT, PRINTED, PRINTED_PI
from flyball.lab.rigs.consumer.limiters.aimd import AimdLimit
from flyball.lab.rigs.consumer.limiters.gradient2 import Gradient2Limit
from flyball.lab.rigs.consumer.limiters.vegas import VegasLimit
from flyball.testing.zoo import Outcome, Scenario, Verdict, judge, run, scenario, sweep

SCENARIOS, QUICK = 200, 12
LIMITERS: dict[str, Controller[Any]] = {
    "Vegas": VegasLimit(),
    "Gradient2": Gradient2Limit(),
    "AIMD": AimdLimit(),
}
FIRST_LIMIT = 20.0
"""Where the limiters begin, as published."""
WITHIN, WORST, HELD, EXCESS = 0.95, 0.7, 0.97, 1.2
_WIDE = 3.0  # windows that are so much wider than the best fixed one let messages queue in the client


def cases(context: BenchContext) -> Iterator[Row]:
    count = QUICK if context.quick else SCENARIOS
    found: dict[str, list[tuple[Scenario, Verdict]]] = {}
    for number in range(count):
        drawn = scenario(1000 * context.seed + number)
        verdicts = compare(drawn)
        for name, verdict in verdicts.items():
            found.setdefault(name, []).append((drawn, verdict))
        text = ", ".join(f"{name} {verdict.ratio:.2f}" for name, verdict in verdicts.items())
        context.note(f"  {drawn.name}: {text}")
    yield from _rows(context, found)
    for drawn, verdict in sorted(found[DEFAULT], key=lambda pair: pair[1].ratio)[:10]:
        yield context.row(f"zoo, {drawn.name}", verdict.ratio, "of the best")


def compare(drawn: Scenario) -> dict[str, Verdict]:
    """Judge our default and every controller that knows such a goal."""
    fixed = {width: replace(one, runs=()) for width, one in sweep(drawn).items()}
    verdicts = {DEFAULT: judge(drawn, run(drawn), fixed)}
    for name, controller in ((PRINTED, PRINTED_PI), ("proportional rule", ProportionalRule())):
        verdicts[name] = judge(drawn, _told(drawn, controller), fixed)
    if drawn.kind != "rate":
        goal = drawn.goals[0][1]
        for name, limiter in LIMITERS.items():
            if isinstance(limiter, AimdLimit) and isinstance(goal, Latency):
                limiter = AimdLimit(timeout_s=goal.p95_s)  # its clients say what they allow
            outcome = run(drawn, limiter, window=FIRST_LIMIT, guarded=False)
            verdicts[name] = judge(drawn, outcome, fixed)
    return verdicts


def _told(drawn: Scenario, controller: Controller[Any]) -> Outcome:
    if drawn.kind == "rate":
        return run(drawn, controller)
    return run(drawn, controller, goal=Rate(drawn.capacity_per_s / drawn.consumers))


def _rows(context: BenchContext, found: dict[str, list[tuple[Scenario, Verdict]]]) -> Iterator[Row]:
    for name, pairs in found.items():
        ours = name == DEFAULT
        suffix = "" if ours else f", {name}"
        verdicts = [verdict for _, verdict in pairs]
        ratios = np.array([verdict.ratio for verdict in verdicts])
        reachable = sum(verdict.reachable for verdict in verdicts)
        held = sum(verdict.held for verdict in verdicts) / max(1, reachable)
        wide = [verdict.wide > _WIDE for drawn, verdict in pairs if drawn.kind == "capacity"]
        rows = (
            ("zoo within 10", float((ratios >= 0.9).mean()), "fraction", WITHIN, "higher"),
            ("zoo worst", float(ratios.min()), "of the best", WORST, "higher"),
            ("zoo held", held, "fraction", HELD, "higher"),
            ("zoo largest rate over 3 s", max(v.excess for v in verdicts), "of the goal", EXCESS, "lower"),
            ("zoo capacity too wide", float(np.mean(wide)) if wide else 0.0, "fraction", None, "lower"),
        )
        for case, value, unit, goal, better in rows:
            yield context.row(
                case + suffix,
                value,
                unit,
                goal=goal if ours else None,
                better="higher" if better == "higher" else "lower",
            )
        for kind in ("rate", "capacity", "latency"):
            part = np.array([verdict.ratio for drawn, verdict in pairs if drawn.kind == kind])
            if part.size:
                yield context.row(f"zoo {kind} within 10{suffix}", float((part >= 0.9).mean()), "fraction")
        if ours:
            violations = sum(verdict.held < verdict.reachable for verdict in verdicts)
            yield context.row("zoo scenarios with goal violations", float(violations), "scenarios")
            silent = sum(verdict.unexplained for verdict in verdicts)
            yield context.row("zoo latency out of reach and not said", float(silent), "scenarios", goal=0.0)
