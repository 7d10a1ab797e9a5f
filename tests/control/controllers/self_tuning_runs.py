"""Random plants and faults under a self-tuning controller: the gains it adopts, judged on the true plant."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from flyball.control.controllers.self_tuning import SelfTuning, SelfTuningState
from flyball.control.gains import Gains
from flyball.control.limits import clamp
from flyball.control.models import Arx, first_order
from flyball.control.polynomials import closed_loop, radii
from flyball.control.step import Sample
from flyball.control.verification.verify import verify

FAULTS = ("none", "outlier", "outliers", "zeros", "stuck", "spikes", "kick", "load", "loads", "ramp", "missing")
SAMPLES = 250


@dataclass(frozen=True)
class Case:
    """A plant, its noise, the loop on it and what goes wrong, all of it from one seed."""

    seed: int
    fault: str
    plant: Arx
    process_noise: float
    sensor_noise: float
    loop: SelfTuning
    goal: float
    goal_step: float
    reach: float
    """How far the command may go from where it starts."""
    size: float
    """Of the fault, in deviations of the noise."""
    start: int
    length: int


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    a = rng.choice((rng.uniform(-0.3, 0.6), rng.uniform(0.5, 0.97)))
    b = rng.choice((-1.0, 1.0)) * 10.0 ** rng.uniform(-2.0, 2.0)
    delay = rng.choice((0, 0, 1, 2))
    plant = first_order(a, b, delay, rng.uniform(-50.0, 50.0))
    noise = 10.0 ** rng.uniform(-1.0, 1.0)
    sensor = rng.random() < 0.3
    settling = rng.uniform(6.0, 20.0) + 3.0 * delay
    ki = 0.3 * (1.0 - abs(a)) ** 2 / b / (1 + delay)
    while not verify(plant, Gains(0.0, ki)).accepted:
        ki /= 2.0
    probe = noise / abs(b) * 10.0 ** rng.uniform(0.0, 0.8)
    loop = SelfTuning(kp=0.0, ki=ki, settling=settling, delay=delay, probe=probe)
    return Case(
        seed,
        rng.choice(FAULTS),
        plant,
        process_noise=noise * (0.3 if sensor else 1.0),
        sensor_noise=noise if sensor else 0.0,
        loop=loop,
        goal=rng.uniform(-200.0, 400.0),
        goal_step=rng.choice((0.0, rng.uniform(5.0, 60.0) * noise)),
        reach=rng.choice((math.inf, rng.uniform(5.0, 50.0) * probe)),
        size=rng.choice((-1.0, 1.0)) * 10.0 ** rng.uniform(0.3, 3.0),
        start=rng.randint(3, 170),
        length=rng.randint(2, 30),
    )


def adopted_gains(case: Case) -> list[SelfTuningState]:
    """Run the case; the state after each swap of gains."""
    rng = random.Random(case.seed + 1)
    (a,), (b,), plant = case.plant.a, case.plant.b, case.plant
    y = case.goal
    middle = u = (y * (1.0 - a) - plant.offset) / b
    noise = case.process_noise + case.sensor_noise
    state, under_way, swaps = case.loop.initial(u), [u] * plant.delay, []
    stuck = y
    for k in range(SAMPLES):
        since = k - case.start
        within = 0 <= since < case.length
        measured: float | None = y + case.sensor_noise * rng.gauss(0.0, 1.0)
        if not within:
            stuck = measured or 0.0
        match case.fault:
            case "outlier" if since == 0:
                measured = y + case.size * noise
            case "outliers" if since >= 0 and rng.random() < 0.04:
                measured = y + case.size * noise * rng.gauss(0.0, 1.0)
            case "zeros" if within and rng.random() < 0.5:
                measured = 0.0
            case "stuck" if within:
                measured = stuck
            case "spikes" if 0 <= since < min(case.length, 6):
                measured = y + case.size * noise * rng.choice((-1.0, 1.0))
            case "missing" if within and rng.random() < 0.7:
                measured = None
        goal = case.goal + (case.goal_step if k // (20 + case.seed % 41) % 2 else 0.0)
        before = state.swaps
        state, action = case.loop.step(state, Sample(float(k), 1.0, goal, measured, u))
        if state.swaps > before:
            swaps.append(state)
        if isinstance(action.command, float):
            u = clamp(action.command, middle - case.reach, middle + case.reach)
        under_way.append(u)
        y = a * y + b * under_way.pop(0) + plant.offset + case.process_noise * rng.gauss(0.0, 1.0)
        match case.fault:
            case "kick" if since == 0:
                y += case.size * noise
            case "load" if since >= 0:
                y += case.size * noise / 4.0
            case "loads" if since >= 0 and since // (10 + case.length) % 2 == 0:
                y += case.size * noise / 4.0
            case "ramp" if since >= 0:
                y += case.size * noise / 10.0 * min(1.0, since / (2.0 * case.length))
    return swaps


def true_radius(case: Case, state: SelfTuningState) -> float:
    """The largest modulus of the closed-loop poles with these gains on the true plant."""
    loop = closed_loop(case.plant, Gains(state.kp, state.ki).polynomials())
    return float(radii(loop.characteristic[None, :])[0])
