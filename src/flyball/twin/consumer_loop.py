"""The consumer's loop in virtual time: the decisions of `consumer.policy` on the plant of `consumer`.

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
    ConsumerMeasurement,
    Goal,
    TargetState,
    compute_target,
    guard_for,
    make_controller,
    parse_goal,
)
from flyball.consumer.policy.goals import Rate
from flyball.consumer.policy.little import Little
from flyball.consumer.policy.pacing import KEEP_RESIDENCE, Pacing, carry_out
from flyball.control.filters import ewma
from flyball.control.models import Array
from flyball.control.record import LoopRecord
from flyball.control.step import Controller
from flyball.control.wrappers.dither import DitherState, dither_step
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
    measurements: tuple[ConsumerMeasurement, ...] = field(repr=False, default=())
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
    sensor: Callable[[ConsumerMeasurement], ConsumerMeasurement] | None = None,
    dither: bool = True,
    guarded: bool = True,
    seed: int = 1,
) -> ConsumerRun:
    """Hold a goal on a plant; `controller` None is the consumer's default. `sensor` distorts the measurement.

    A rate is an upper bound, as in the live consumer, unless a controller of one's own or a sensor decides.

    >>> run = run_consumer(ConsumerPlant(), "rate=400", samples=20)
    >>> bool(abs(run.rate[5:].mean() - 400.0) < 4.0)
    True
    """
    first = parse_goal(goal(0.0) if callable(goal) else goal)
    controller = make_controller(first, controller)  # as the live consumer wraps it
    policy = Policy(
        "consumer", controller, period_s, limits, guard_for(controller) if guarded else None, glide=False
    )
    environment = require("simpy", "lab").Environment()
    consumer = RunningConsumer(plant, environment, np.random.default_rng(seed))
    state, target_state = start(policy, window), TargetState()
    dither_state, wanted, residence_s = DitherState(), window, None
    pacing: Pacing = "bounded" if isinstance(controller, Little) and sensor is None else "off"
    actuation = carry_out(wanted, pacing, residence_s, _rate_of(first))
    records: list[LoopRecord] = []
    true: list[ConsumerMeasurement] = []
    steps = max(1, round(period_s / DITHER_S))
    for tick in range(samples * steps):
        consumer.set_pace(actuation)
        if dither:
            dither_state, whole = dither_step(dither_state, actuation.window)
        else:
            whole = math.floor(actuation.window + 0.5)
        consumer.set_window(whole)
        environment.run(until=(tick + 1) * period_s / steps)
        if (tick + 1) % steps:
            continue
        measurement = consumer.measure()
        true.append(measurement)
        observed = measurement if sensor is None else sensor(measurement)
        now = parse_goal(goal(measurement.time_s) if callable(goal) else goal)
        target_state, target = compute_target(now, target_state, observed)
        observation = Observation(
            measurement.time_s, target.setpoint, target.measurement, state.command, target.disturbances
        )
        state, record = decide(policy, state, observation)
        records.append(record)
        wanted = _scalar(state.command)
        if observed.residence_s is not None:
            residence_s = ewma(residence_s, observed.residence_s, KEEP_RESIDENCE)
        actuation = carry_out(wanted, pacing, residence_s, _rate_of(now))
    return ConsumerRun(
        time=np.array([measurement.time_s for measurement in true]),
        goal=np.array([_scalar(record.setpoint) for record in records]),
        rate=np.array([measurement.rate_per_s for measurement in true], dtype=float),
        command=np.array([_scalar(record.applied) for record in records]),
        depth=np.array([math.nan if measurement.depth is None else measurement.depth for measurement in true]),
        records=tuple(records),
        measurements=tuple(true),
        most_occupied=consumer.most_occupied,
    )


def noisy(
    share: float, seed: int, *, residence: bool = False
) -> Callable[[ConsumerMeasurement], ConsumerMeasurement]:
    """A sensor with a random error of the standard deviation `share` in the rate (and the residence time)."""
    rng = np.random.default_rng(seed)

    def sense(measurement: ConsumerMeasurement) -> ConsumerMeasurement:
        off = [max(0.0, 1.0 + rng.normal(0.0, share)) for _ in range(2)]
        rate = None if measurement.rate_per_s is None else measurement.rate_per_s * off[0]
        residence_s = measurement.residence_s
        if residence and residence_s is not None:
            residence_s *= off[1]
        return replace(measurement, rate_per_s=rate, residence_s=residence_s)

    return sense


def late(samples: int) -> Callable[[ConsumerMeasurement], ConsumerMeasurement]:
    """A sensor that reports the values of so many samples ago."""
    history: deque[ConsumerMeasurement] = deque(maxlen=samples + 1)

    def sense(measurement: ConsumerMeasurement) -> ConsumerMeasurement:
        history.append(measurement)
        old = history[0]
        return replace(old, time_s=measurement.time_s, dt_s=measurement.dt_s)

    return sense


def _rate_of(goal: Goal) -> float | None:
    return goal.per_s if isinstance(goal, Rate) else None


def _scalar(value: Any) -> float:
    return float(value[0] if isinstance(value, tuple) else value)
