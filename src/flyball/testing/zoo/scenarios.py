"""Draw a plant and its day from a seed: handlers, broker, publishers, goals, and what goes wrong.

Bounded so that a run takes a second: at most a thousand messages a second, for a minute and a half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from flyball.consumer.policy.goals import Capacity, Goal, Latency, Rate
from flyball.twin.consumer_loop import Sensor, late, noisy
from flyball.twin.consumer_plant import ConsumerPlant
from flyball.twin.handler_laws import Bimodal, Constant, Gamma, HandlerLaw, LogNormal, Pareto, quantile
from flyball.twin.workload import Steps, Workload

Kind: TypeAlias = Literal["rate", "capacity", "latency"]

SAMPLES = 90
_MOST_PER_S = 1000.0
_EVENT_S = (35.0, 60.0)  # the day's trouble is within this time, so that both sides of it show


@dataclass(frozen=True)
class Scenario:
    """`goals` are (from, goal); `changes_s` are the times at which something changed.

    `capacity_per_s` is what the handlers of all consumers can take while nothing is wrong, `knee` the window that
    this needs in each of them.
    """

    seed: int
    name: str
    kind: Kind
    plant: ConsumerPlant
    goals: tuple[tuple[float, Goal], ...]
    capacity_per_s: float
    knee: float
    consumers: int = 1
    shares_handlers: bool = False
    noise: float = 0.0
    late: int = 0
    changes_s: tuple[float, ...] = ()
    samples: int = SAMPLES
    law: HandlerLaw = field(default_factory=Constant)

    def goal_at(self, time_s: float) -> Goal:
        return [goal for begin, goal in self.goals if begin <= time_s][-1]

    def sensors(self) -> tuple[Sensor, ...]:
        if self.noise:
            return tuple(noisy(self.noise, self.seed + number) for number in range(self.consumers))
        return tuple(late(self.late) for _ in range(self.consumers)) if self.late else ()


_LAWS: dict[str, Callable[[np.random.Generator], HandlerLaw]] = {
    "constant": lambda _: Constant(),
    "gamma": lambda rng: Gamma(float(rng.uniform(0.1, 0.5))),
    "exponential": lambda _: Gamma(1.0),
    "log-normal": lambda rng: LogNormal(float(rng.uniform(1.0, 2.0))),
    "bimodal": lambda rng: Bimodal(float(rng.uniform(0.05, 0.3)), float(rng.uniform(10.0, 100.0))),
    "heavy tail": lambda rng: Pareto(float(rng.uniform(1.5, 2.5))),
}


def scenario(seed: int, kind: Kind | None = None) -> Scenario:
    """Draw the scenario of a seed; `kind` asks for one kind of goal.

    >>> one = scenario(1)
    >>> one == scenario(1), one.kind in ("rate", "capacity", "latency")
    (True, True)
    """
    rng = np.random.default_rng((2009, seed))
    drawn: Kind = ("rate", "rate", "capacity", "capacity", "latency")[rng.integers(5)]
    kind = kind or drawn
    law_name = list(_LAWS)[rng.integers(len(_LAWS))]
    law = _LAWS[law_name](rng)
    handling_s = _log_uniform(rng, 1e-3, 1.0)
    handlers = max(1, min(round(_log_uniform(rng, 1.0, 64.0)), int(_MOST_PER_S * handling_s)))
    words = [law_name, f"{1e3 * handling_s:.3g} ms x {handlers}"]

    consumers, shares = 1, False
    if rng.random() < 0.12:
        consumers, shares = int(rng.integers(2, 4)), bool(rng.random() < 0.5)
        words.append(f"{consumers} consumers" + (", one pool" if shares else ""))
    capacity = handlers / handling_s * (1 if shares else consumers)
    round_trip_s = _log_uniform(rng, 2e-4, 0.06)
    replacement_s = float(rng.uniform(0.0005, 0.002)) if rng.random() < 0.3 else 0.0

    slower, changes = 1.0, []
    begin_s, end_s = _EVENT_S[0], float(rng.uniform(50.0, _EVENT_S[1]))
    if rng.random() < 0.3:
        slower = _log_uniform(rng, 1.5, 20.0)
        changes += [begin_s, end_s]
        words.append(f"{slower:.3g} times slower")
    outages: tuple[tuple[float, float], ...] = ()
    if rng.random() < 0.1:
        outages = ((begin_s, begin_s + float(rng.uniform(3.0, 8.0))),)
        changes += list(outages[0])
        words.append("outage")
    failing = 0.0
    if rng.random() < 0.15:
        failing = float(rng.uniform(0.01, 0.05))
        words.append(f"{failing:.1%} poison")
        capacity /= 1.0 + 3.0 * failing
    noise, lateness = 0.0, 0
    if rng.random() < 0.12:
        noise = float(rng.uniform(0.1, 0.3))
        words.append("noisy metric")
    elif rng.random() < 0.12:
        lateness = int(rng.integers(1, 3))
        words.append("late metric")
    wander = float(rng.uniform(0.0, 0.08))
    stalls_per_s = 0.1 if rng.random() < 0.1 else 0.0

    residence_s = handling_s + round_trip_s + replacement_s
    goals, publishers, more = _demand(rng, kind, capacity, law, handling_s, round_trip_s)
    changes += more
    if kind == "rate":
        goals = tuple((at_s, Rate(goal.per_s / consumers)) for at_s, goal in goals if isinstance(goal, Rate))
    words.insert(0, f"{goals[0][1]:}" + (" and others" if len(goals) > 1 else ""))
    if publishers is not None:
        words.append("publishers")

    def handling(time_s: float) -> float:
        return handling_s * (slower if begin_s <= time_s < end_s else 1.0)

    plant = ConsumerPlant(
        round_trip_s=round_trip_s,
        handling_s=handling if slower > 1.0 else handling_s,
        client_s=0.0001,
        handlers=handlers,
        jitter=0.05,
        wander=wander,
        stalls_per_s=stalls_per_s,
        stall_s=0.2,
        publishers=publishers,
        replacement_s=replacement_s,
        law=law,
        failing=failing,
        outages=outages,
    )
    return Scenario(
        seed=seed,
        name=f"{seed}: {', '.join(words)}",
        kind=kind,
        plant=plant,
        goals=goals,
        capacity_per_s=capacity,
        knee=capacity * residence_s / consumers,
        consumers=consumers,
        shares_handlers=shares,
        noise=noise,
        late=lateness,
        changes_s=tuple(changes),
        law=law,
    )


def _demand(
    rng: np.random.Generator, kind: Kind, capacity: float, law: HandlerLaw, handling_s: float, round_trip_s: float
) -> tuple[tuple[tuple[float, Goal], ...], Workload | None, list[float]]:
    """The goals, the publishers (None: there is always more) and the times at which either changes."""
    if kind == "capacity":
        if rng.random() < 0.6:
            return ((0.0, Capacity()),), None, []
        low, high = float(rng.uniform(0.3, 0.8)) * capacity, float(rng.uniform(1.5, 3.0)) * capacity
        return ((0.0, Capacity()),), Steps(((0.0, high), (30.0, low), (65.0, high))), [30.0, 65.0]
    if kind == "latency":
        alone_s = handling_s * quantile(law, 0.95) + round_trip_s
        reachable = rng.random() < 0.85
        goal_s = alone_s * float(rng.uniform(1.5, 4.0) if reachable else rng.uniform(0.3, 0.8))
        load = float(rng.uniform(0.3, 0.8)) * capacity
        if rng.random() < 0.5:
            return ((0.0, Latency(goal_s)),), Steps(((0.0, load),)), []
        burst = float(rng.uniform(1.2, 2.0)) * capacity
        return ((0.0, Latency(goal_s)),), Steps(((0.0, load), (40.0, burst), (45.0, load))), [40.0, 45.0]
    share = float(rng.uniform(0.2, 0.8)) if rng.random() < 0.85 else float(rng.uniform(1.3, 3.0))
    goals: list[tuple[float, Goal]] = [(0.0, Rate(share * capacity))]
    if rng.random() < 0.3:
        goals += [(at_s, Rate(float(rng.uniform(0.2, 0.8)) * capacity)) for at_s in (30.0, 62.0)]
    times = [at_s for at_s, _ in goals[1:]]
    if rng.random() < 0.7:
        return tuple(goals), None, times
    most = 1.3 * max(goal.per_s for _, goal in goals if isinstance(goal, Rate))
    drought = float(rng.uniform(0.1, 0.6)) * min(goal.per_s for _, goal in goals if isinstance(goal, Rate))
    return tuple(goals), Steps(((0.0, most), (40.0, drought), (52.0, most))), [*times, 40.0, 52.0]


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
