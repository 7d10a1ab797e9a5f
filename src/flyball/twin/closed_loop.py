"""One loop on one linear plant, start to end: what `flyball simulate` and the experiments run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyball.control.guard.guard import Guard
from flyball.control.models import Array, Arx
from flyball.control.record import LoopRecord
from flyball.control.step import Controller
from flyball.errors import InvalidValue
from flyball.loops.policy import Policy
from flyball.twin.engine import TwinLoop
from flyball.twin.plants import ArxPlant


@dataclass(frozen=True)
class Setup:
    """Everything that determines a run: the same set-up gives the same run, noise included."""

    model: Arx
    controller: Controller[Any]
    goal: float | Callable[[float], float]
    samples: int = 100
    period_s: float = 1.0
    command: float = 0.0
    output: float | None = None
    limits: tuple[float, float] | None = None
    whole: bool = False
    noise: float = 0.0
    sensor_noise: float = 0.0
    disturbance: Callable[[float], float] | None = None
    guard: Guard | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise InvalidValue(f"samples of a run must be >= 2, got {self.samples}")
        if not callable(self.goal) and not math.isfinite(self.goal):
            raise InvalidValue(f"goal must be a finite number, got {self.goal}")


@dataclass(frozen=True)
class Run:
    """What happened: arrays over the samples, and the records behind them."""

    time: Array
    goal: Array
    measurement: Array
    command: Array
    records: tuple[LoopRecord, ...]

    def summary(self, *, skip: int = 0, band: float = 0.05) -> Summary:
        """Figures of the run; mean, std and rmse leave out the first `skip` samples.

        Settled means: within `band` (a fraction of the last goal) of the goal from that sample on, None where
        that never happens. Overshoot is how far the output went beyond the last goal, as a fraction of the
        step from where it stood at the start.
        """
        tail, goal = self.measurement[skip:], float(self.goal[-1])
        outside = np.flatnonzero(np.abs(self.measurement - goal) > band * abs(goal))
        settled = int(outside[-1]) + 1 if outside.size else 0
        step = goal - float(self.measurement[0])
        beyond = float(np.max((self.measurement - goal) * np.sign(step))) if step else 0.0
        return Summary(
            mean=float(tail.mean()),
            std=float(tail.std()),
            rmse=float(np.sqrt(np.mean((tail - self.goal[skip:]) ** 2))),
            settling=settled if settled < self.measurement.size else None,
            overshoot=max(0.0, beyond / abs(step)) if step else 0.0,
            command_mean=float(self.command[skip:].mean()),
            command_std=float(self.command[skip:].std()),
            saturated=sum(record.saturated != 0 for record in self.records[skip:]),
            alert=next((record.alert for record in self.records if record.alert), ""),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    mean: float
    std: float
    rmse: float
    settling: int | None
    overshoot: float
    command_mean: float
    command_std: float
    saturated: int
    alert: str


def run_closed_loop(setup: Setup) -> Run:
    """Run a loop on its plant in the twin.

    >>> from flyball.control.controllers.pi import Pi
    >>> from flyball.control.models import first_order
    >>> run = run_closed_loop(Setup(first_order(0.26, 59.73), Pi(-0.0016, 0.0060), 400.0, command=1.0))
    >>> found = run.summary(skip=50)
    >>> round(found.mean, 3), round(found.std, 3), found.settling
    (400.0, 0.0, 6)
    """
    plant = ArxPlant(
        setup.model,
        period_s=setup.period_s,
        command=setup.command,
        output=setup.output,
        noise=setup.noise,
        sensor_noise=setup.sensor_noise,
        disturbance=setup.disturbance,
        limits=setup.limits,
        whole=setup.whole,
        rng=np.random.default_rng(setup.seed),
    )
    policy = Policy("simulation", setup.controller, setup.period_s, setup.limits, setup.guard)
    # One loop on a plant without processes of its own needs no event queue, and so no SimPy.
    loop = TwinLoop(policy, plant, setup.goal, setup.command)
    for sample in range(setup.samples):
        loop.step(sample * setup.period_s)
    records = tuple(loop.records)
    return Run(
        time=np.array([record.time for record in records]),
        goal=np.array([record.setpoint for record in records], dtype=float),
        measurement=np.array([record.measurement for record in records], dtype=float),
        command=np.array(
            [record.applied if record.command is None else record.command for record in records], dtype=float
        ),
        records=records,
    )


def step_at(time_s: float, size: float) -> Callable[[float], float]:
    """A load disturbance that sets in at `time_s` and stays."""
    return lambda time: size if time >= time_s else 0.0
