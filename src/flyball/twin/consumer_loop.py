"""The consumer's loop in virtual time: the decisions of `consumer.policy` on the plant of `consumer`.

It repeats what the live consumer does each second and every 50 ms, in the same order; the sensors can be made
noisy or late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

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
from flyball.consumer.policy.pacing import KEEP_RESIDENCE, MetricScale, Pacing, carry_out
from flyball.control.filters import ewma
from flyball.control.models import Array
from flyball.control.record import LoopRecord
from flyball.control.step import Controller
from flyball.control.wrappers.dither import DitherState, dither_step
from flyball.errors import require
from flyball.loops.policy import Observation, Policy, decide, start
from flyball.twin.consumer import ConsumerPlant, RunningConsumer

Sensor: TypeAlias = Callable[[ConsumerMeasurement], ConsumerMeasurement]
"""Distorts a measurement."""


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
    sensor: Sensor | None = None,
    dither: bool = True,
    guarded: bool = True,
    seed: int = 1,
) -> ConsumerRun:
    """Hold a goal on a plant; `controller` None is the consumer's default. `sensor` distorts the measurement.

    A rate is an upper bound, as in the live consumer, unless a controller of one's own decides.

    >>> run = run_consumer(ConsumerPlant(), "rate=400", samples=20)
    >>> bool(abs(run.rate[5:].mean() - 400.0) < 4.0)
    True
    """
    return run_consumers(
        plant,
        goal,
        controller,
        samples=samples,
        period_s=period_s,
        window=window,
        limits=limits,
        sensors=() if sensor is None else (sensor,),
        dither=dither,
        guarded=guarded,
        seed=seed,
    )[0]


def run_consumers(
    plant: ConsumerPlant,
    goal: Goal | str | Callable[[float], Goal | str],
    controller: Controller[Any] | None = None,
    *,
    count: int = 1,
    shares_handlers: bool = False,
    samples: int = 60,
    period_s: float = 1.0,
    window: float = FIRST_WINDOW,
    limits: tuple[float, float] = WINDOW_LIMITS,
    sensors: Sequence[Sensor] = (),
    dither: bool = True,
    guarded: bool = True,
    seed: int = 1,
) -> list[ConsumerRun]:
    """`run_consumer` for `count` consumers of one queue, each with the goal, a controller and its sensor.

    Each has handlers of its own, or, with `shares_handlers`, all wait for the same ones.
    """
    environment = require("simpy", "lab").Environment()
    loops: list[_WindowLoop] = []
    for number in range(count):
        rng = np.random.default_rng(seed if number == 0 else (seed, number))
        beside = loops[0].consumer if loops else None
        consumer = RunningConsumer(plant, environment, rng, beside=beside, shares_handlers=shares_handlers)
        sensor = sensors[number] if sensors else None
        loops.append(
            _WindowLoop(
                consumer, goal, controller, period_s, window, limits, sensor, dither=dither, guarded=guarded
            )
        )
    steps = max(1, round(period_s / DITHER_S))
    for tick in range(samples * steps):
        for loop in loops:
            loop.set_window()
        environment.run(until=(tick + 1) * period_s / steps)
        if (tick + 1) % steps == 0:
            for loop in loops:
                loop.sample()
    return [loop.result() for loop in loops]


class _WindowLoop:
    """One consumer's loop: what `consumer/window_loop.py` is live."""

    def __init__(
        self,
        consumer: RunningConsumer,
        goal: Goal | str | Callable[[float], Goal | str],
        controller: Controller[Any] | None,
        period_s: float,
        window: float,
        limits: tuple[float, float],
        sensor: Sensor | None,
        *,
        dither: bool,
        guarded: bool,
    ) -> None:
        self.consumer, self._goal, self._sensor, self._dither = consumer, goal, sensor, dither
        first = self._goal_at(0.0)
        made = make_controller(first, controller)  # as the live consumer wraps it
        self._policy = Policy(
            "consumer", made, period_s, limits, guard_for(made) if guarded else None, glide=False
        )
        self._pacing: Pacing = "bounded" if isinstance(made, Little) else "off"
        self._scale = MetricScale()
        self._state, self._target_state = start(self._policy, window), TargetState()
        self._dither_state = DitherState()
        self._residence_s: float | None = None
        self._most = limits[1]
        self._actuation = carry_out(window, self._pacing, None, self._pace(first), self._most)
        self._records: list[LoopRecord] = []
        self._true: list[ConsumerMeasurement] = []

    def _goal_at(self, time_s: float) -> Goal:
        return parse_goal(self._goal(time_s) if callable(self._goal) else self._goal)

    def set_window(self) -> None:
        self.consumer.set_pace(self._actuation)
        if self._dither:
            self._dither_state, whole = dither_step(self._dither_state, self._actuation.window)
        else:
            whole = math.floor(self._actuation.window + 0.5)
        self.consumer.set_window(whole)

    def sample(self) -> None:
        measurement = self.consumer.measure()
        self._true.append(measurement)
        observed = measurement
        if self._sensor is not None:
            observed = self._sensor(measurement)
            self._scale = self._scale.update(observed.rate_per_s, measurement.rate_per_s)
        now = self._goal_at(measurement.time_s)
        self._target_state, target = compute_target(now, self._target_state, observed)
        observation = Observation(
            measurement.time_s, target.setpoint, target.measurement, self._state.command, target.disturbances
        )
        self._state, record = decide(self._policy, self._state, observation)
        self._records.append(record)
        if observed.residence_s is not None:
            self._residence_s = ewma(self._residence_s, observed.residence_s, KEEP_RESIDENCE)
        command = _scalar(self._state.command)
        self._actuation = carry_out(command, self._pacing, self._residence_s, self._pace(now), self._most)

    def _pace(self, goal: Goal) -> float | None:
        if not isinstance(goal, Rate):
            return None
        return goal.per_s if self._sensor is None else self._scale.pace_for(goal.per_s)

    def result(self) -> ConsumerRun:
        true, records = self._true, self._records
        return ConsumerRun(
            time=np.array([measurement.time_s for measurement in true]),
            goal=np.array([_scalar(record.setpoint) for record in records]),
            rate=np.array([measurement.rate_per_s for measurement in true], dtype=float),
            command=np.array([_scalar(record.applied) for record in records]),
            depth=np.array([math.nan if measurement.depth is None else measurement.depth for measurement in true]),
            records=tuple(records),
            measurements=tuple(true),
            most_occupied=self.consumer.most_occupied,
        )


def noisy(share: float, seed: int, *, residence: bool = False) -> Sensor:
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


def late(samples: int) -> Sensor:
    """A sensor that reports the values of so many samples ago."""
    history: deque[ConsumerMeasurement] = deque(maxlen=samples + 1)

    def sense(measurement: ConsumerMeasurement) -> ConsumerMeasurement:
        history.append(measurement)
        old = history[0]
        return replace(old, time_s=measurement.time_s, dt_s=measurement.dt_s)

    return sense


def _scalar(value: Any) -> float:
    return float(value[0] if isinstance(value, tuple) else value)
