"""Run a scenario in the twin and judge it: beside fixed windows, and by whether the goal was held.

The value of a run is what it achieved of its goal, from the tenth sample on:

rate      1 − |rate − goal| / goal, over blocks of samples long enough for about thirty messages: too much costs
          as much as too little
capacity  the mean rate
latency   the share of samples whose p95 was within the goal (those in which no message was handled do not count,
          unless some waited)

A sample is *reachable* where one of the fixed windows of the sweep held the goal in it. The first samples after a
change do not count for `held`: somebody has to notice it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyball.consumer.policy.controller import FIRST_WINDOW
from flyball.consumer.policy.goals import Goal, Latency, Rate
from flyball.control.controllers.fixed import Fixed
from flyball.control.models import Array
from flyball.control.step import Controller, ReasonCode
from flyball.testing.zoo.scenarios import Scenario
from flyball.twin.consumer_loop import ConsumerRun, run_consumers

START = 10
"""Samples at the start that do not count."""
AFTER_CHANGE = 10
WITHIN = 0.1
_BLOCK = 30.0  # messages
_LONGEST_BLOCK = 15
_SHARES = (0.35, 0.6, 0.85, 1.1, 1.5, 2.5)  # of the knee: the fixed windows of a sweep
_BOUND, _BOUND_S = 1.2, 3


@dataclass(frozen=True)
class Outcome:
    """What all consumers of a scenario did together: rates, and the worst p95 among them, in each sample."""

    rate: Array
    p95_s: Array
    window: float
    runs: tuple[ConsumerRun, ...]

    @property
    def explained(self) -> bool:
        """Whether a loop said that the goal is out of reach."""
        return any(record.code is ReasonCode.UNREACHABLE for run in self.runs for record in run.records)


@dataclass(frozen=True)
class Verdict:
    """`ratio`: value beside the best fixed window's. `held` of the `reachable` samples had the goal held.

    `excess`: the largest rate over any three seconds beside the goal. `wide`: mean window / best fixed one.
    """

    value: float
    best: float
    best_window: float
    held: int
    reachable: int
    excess: float
    wide: float
    unexplained: bool

    @property
    def ratio(self) -> float:
        return self.value / self.best if self.best > 0.0 else 1.0


def run(
    scenario: Scenario,
    controller: Controller[Any] | None = None,
    *,
    goal: Goal | None = None,
    window: float = FIRST_WINDOW,
    guarded: bool = True,
) -> Outcome:
    """Run a scenario with a controller (None: the default); `goal` replaces the scenario's for it."""
    runs = run_consumers(
        scenario.plant,
        scenario.goal_at if goal is None else goal,
        controller,
        count=scenario.consumers,
        shares_handlers=scenario.shares_handlers,
        samples=scenario.samples,
        window=window,
        sensors=scenario.sensors(),
        guarded=guarded,
        seed=scenario.seed,
    )
    p95_s = [[_p95(seen.latency_p95_s, seen.depth) for seen in one.measurements] for one in runs]
    return Outcome(
        rate=np.sum([one.rate for one in runs], axis=0),
        p95_s=np.max(np.array(p95_s), axis=0),
        window=float(np.mean([one.command[START:].mean() for one in runs])),
        runs=tuple(runs),
    )


def _p95(p95_s: float | None, depth: float | None) -> float:
    """A sample without a message was within any goal, unless messages waited."""
    return p95_s if p95_s is not None else math.inf if depth else 0.0


def sweep(scenario: Scenario, shares: Sequence[float] = _SHARES) -> dict[float, Outcome]:
    """Run fixed windows around the knee, in order."""
    goal = scenario.goals[0][1] if scenario.kind == "rate" else Rate(scenario.capacity_per_s)
    windows = sorted({max(1.0, round(share * scenario.knee, 1)) for share in (*shares, *_goal_shares(scenario))})
    return {width: run(scenario, Fixed(width), goal=goal, window=width, guarded=False) for width in windows}


def _goal_shares(scenario: Scenario) -> list[float]:
    """The windows that the goals themselves need by Little's law."""
    return [
        goal.per_s * scenario.consumers / scenario.capacity_per_s
        for _, goal in scenario.goals
        if isinstance(goal, Rate) and goal.per_s * scenario.consumers < scenario.capacity_per_s
    ]


def judge(scenario: Scenario, outcome: Outcome, fixed: dict[float, Outcome]) -> Verdict:
    """Judge an outcome beside those of fixed windows."""
    values = {width: _value(scenario, one) for width, one in fixed.items()}
    best = max(values.values())
    best_window = min(width for width, value in values.items() if value >= 0.97 * best)
    reachable = np.zeros(scenario.samples, dtype=bool)
    if scenario.kind != "capacity":
        for one in fixed.values():
            reachable |= _held(scenario, one, exactly=False)
    counts = _counts(scenario)
    held = _held(scenario, outcome, exactly=True)
    missed = scenario.kind == "latency" and not (held | ~counts).all() and not (reachable & counts).any()
    return Verdict(
        value=_value(scenario, outcome),
        best=best,
        best_window=best_window,
        held=int((held & reachable & counts).sum()),
        reachable=int((reachable & counts).sum()),
        excess=_excess(scenario, outcome.rate),
        wide=outcome.window / best_window,
        unexplained=missed and not outcome.explained,
    )


def _goals(scenario: Scenario) -> Array:
    """The rate that was asked for in each sample, of all consumers."""
    goals = [scenario.goal_at(float(k)) for k in range(scenario.samples)]
    return np.array([goal.per_s if isinstance(goal, Rate) else math.nan for goal in goals]) * scenario.consumers


def _blocks(scenario: Scenario, values: Array) -> Array:
    """Moving means over as many samples as bring about thirty messages, centred."""
    least = float(np.nanmin(_goals(scenario)))
    length = min(_LONGEST_BLOCK, max(1, math.ceil(_BLOCK / least)))
    padded = np.pad(values, (length // 2, (length - 1) // 2), mode="edge")
    return np.convolve(padded, np.ones(length) / length, "valid")


def _value(scenario: Scenario, outcome: Outcome) -> float:
    if scenario.kind == "capacity":
        return float(outcome.rate[START:].mean())
    if scenario.kind == "latency":
        return float(_held(scenario, outcome, exactly=True)[START:].mean())
    goals, rates = _blocks(scenario, _goals(scenario)), _blocks(scenario, outcome.rate)
    return float(np.maximum(0.0, 1.0 - np.abs(rates - goals) / goals)[START:].mean())


def _held(scenario: Scenario, outcome: Outcome, *, exactly: bool) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """In which samples the goal was held; not `exactly`: a rate may be exceeded."""
    if scenario.kind == "latency":
        goal = scenario.goals[0][1]
        assert isinstance(goal, Latency)
        return np.asarray(outcome.p95_s <= goal.p95_s)
    if scenario.kind == "capacity":
        return np.ones(scenario.samples, dtype=bool)
    goals, rates = _blocks(scenario, _goals(scenario)), _blocks(scenario, outcome.rate)
    enough = rates >= (1.0 - WITHIN) * goals if exactly else rates >= goals
    return np.asarray(enough & (rates <= (1.0 + WITHIN) * goals) if exactly else enough)


def _counts(scenario: Scenario) -> np.ndarray[Any, np.dtype[np.bool_]]:
    times = np.arange(scenario.samples)
    counts = times >= START
    for change_s in scenario.changes_s:
        counts &= ~((times >= change_s - 1.0) & (times < change_s + AFTER_CHANGE))
    return counts


def _excess(scenario: Scenario, rate: Array) -> float:
    """The largest rate over any three samples / the largest goal in or just before them; one message is free."""
    if scenario.kind != "rate":
        return 0.0
    goals = _goals(scenario)
    worst = 0.0
    for k in range(scenario.samples - _BOUND_S + 1):
        asked = float(goals[max(0, k - 1) : k + _BOUND_S].max()) * _BOUND_S
        worst = max(worst, (float(rate[k : k + _BOUND_S].sum()) - scenario.consumers) / asked)
    return worst
