"""The consumer's loop in virtual time: the decisions of `consumer/policy.py` on the plant of `consumer`.

It repeats what the live consumer does each second and every 50 ms, in the same order; the sensors can be made
noisy or late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flyball.consumer.policy import (
    DITHER_S,
    FIRST_WINDOW,
    WINDOW_LIMITS,
    AimState,
    DitherState,
    Goal,
    Seen,
    aim,
    dither_step,
    guard_for,
    parse_goal,
    regulator,
)
from flyball.control.models import Array
from flyball.control.record import LoopRecord
from flyball.control.step import Controller
from flyball.errors import require
from flyball.loops.policy import Observation, Policy, decide, start
from flyball.twin.consumer import ConsumerPlant, RunningConsumer


@dataclass(frozen=True)
class ConsumerRun:
    """The result of a run. `rate` is the true rate of each sample, whatever the sensor reported."""

    time: Array
    goal: Array
    rate: Array
    command: Array
    depth: Array
    records: tuple[LoopRecord, ...]
    seen: tuple[Seen, ...] = field(repr=False, default=())
    most_occupied: int = 0


def run_consumer(
    plant: ConsumerPlant,
    goal: Goal | str | Callable[[float], Goal | str],
    controller: Controller[Any] | None = None,
    *,
    samples: int = 60,
    period_s: float = 1.0,
    window: float = FIRST_WINDOW,
    limits: tuple[float, float] = WINDOW_LIMITS,
    sensor: Callable[[Seen], Seen] | None = None,
    dither: bool = True,
    guarded: bool = True,
    seed: int = 1,
) -> ConsumerRun:
    """Hold a goal on a plant; `controller` None is the consumer's default. `sensor` spoils what the loop sees.

    >>> run = run_consumer(ConsumerPlant(), "rate=400", samples=20)
    >>> bool(abs(run.rate[5:].mean() - 400.0) < 4.0)
    True
    """
    first = parse_goal(goal(0.0) if callable(goal) else goal)
    controller = regulator(first, controller)  # as the live consumer wraps it
    policy = Policy(
        "consumer", controller, period_s, limits, guard_for(controller) if guarded else None, glide=False
    )
    environment = require("simpy", "lab").Environment()
    consumer = RunningConsumer(plant, environment, np.random.default_rng(seed))
    state, aiming = start(policy, window), AimState()
    dithering, wanted = DitherState(), window
    records: list[LoopRecord] = []
    true: list[Seen] = []
    steps = max(1, round(period_s / DITHER_S))
    for tick in range(samples * steps):
        if dither:
            dithering, whole = dither_step(dithering, wanted)
        else:
            whole = math.floor(wanted + 0.5)
        consumer.set_window(whole)
        environment.run(until=(tick + 1) * period_s / steps)
        if (tick + 1) % steps:
            continue
        seen = consumer.look()
        true.append(seen)
        observed = seen if sensor is None else sensor(seen)
        now = parse_goal(goal(seen.time_s) if callable(goal) else goal)
        aiming, target = aim(now, aiming, observed)
        observation = Observation(
            seen.time_s, target.setpoint, target.measurement, state.command, target.disturbances
        )
        state, record = decide(policy, state, observation)
        records.append(record)
        wanted = _scalar(state.command)
    return ConsumerRun(
        time=np.array([seen.time_s for seen in true]),
        goal=np.array([_scalar(record.setpoint) for record in records]),
        rate=np.array([seen.rate_per_s for seen in true], dtype=float),
        command=np.array([_scalar(record.applied) for record in records]),
        depth=np.array([math.nan if seen.depth is None else seen.depth for seen in true]),
        records=tuple(records),
        seen=tuple(true),
        most_occupied=consumer.most_occupied,
    )


def noisy(share: float, seed: int, *, residence: bool = False) -> Callable[[Seen], Seen]:
    """A sensor whose rate (with `residence` also residence time) has a random error of this standard deviation."""
    rng = np.random.default_rng(seed)

    def sense(seen: Seen) -> Seen:
        off = [max(0.0, 1.0 + rng.normal(0.0, share)) for _ in range(2)]
        rate = None if seen.rate_per_s is None else seen.rate_per_s * off[0]
        residence_s = seen.residence_s if seen.residence_s is None or not residence else seen.residence_s * off[1]
        return replace(seen, rate_per_s=rate, residence_s=residence_s)

    return sense


def late(samples: int) -> Callable[[Seen], Seen]:
    """A sensor that reports the values of so many samples ago."""
    history: deque[Seen] = deque(maxlen=samples + 1)

    def sense(seen: Seen) -> Seen:
        history.append(seen)
        old = history[0]
        return replace(old, time_s=seen.time_s, dt_s=seen.dt_s)

    return sense


def _scalar(value: Any) -> float:
    return float(value[0] if isinstance(value, tuple) else value)
