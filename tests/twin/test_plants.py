"""The linear plant in time is the linear model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.models import Arx, first_order
from flyball.errors import InvalidValue
from flyball.twin.plants import ArxPlant

coefficients = st.floats(-0.4, 0.4)


@given(
    a=st.lists(coefficients, min_size=1, max_size=2),
    b=st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=3),
    delay=st.integers(0, 3),
    offset=st.floats(-5.0, 5.0),
    commands=st.lists(st.floats(-10.0, 10.0), min_size=1, max_size=30),
    period_s=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_it_runs_like_the_model(
    a: list[float], b: list[float], delay: int, offset: float, commands: list[float], period_s: float
) -> None:
    model = Arx(tuple(a), tuple(b), delay, offset)
    plant = ArxPlant(model, command=commands[0], output=3.0, period_s=period_s)
    outputs = []
    for k, command in enumerate(commands):
        plant.measure(50.0 + k * period_s)
        plant.apply(command, 50.0 + k * period_s)
        outputs.append(plant.measure(50.0 + (k + 1) * period_s))
    assert outputs == pytest.approx(model.simulate(commands, initial=3.0).tolist())


def test_samples_that_nobody_looked_at_pass_too() -> None:
    plant = ArxPlant(first_order(0.5, 1.0), output=0.0)
    plant.measure(0.0)
    plant.apply(1.0, 0.0)
    assert plant.measure(3.0) == 1.75


def test_it_starts_at_rest() -> None:
    plant = ArxPlant(first_order(0.26, 59.73, offset=10.0), command=5.0)
    assert plant.measure(0.0) == pytest.approx(plant.measure(50.0))


def test_an_actuator_with_limits_and_whole_numbers() -> None:
    plant = ArxPlant(first_order(0.0, 1.0), limits=(1.0, 10.0), whole=True)
    plant.measure(0.0)
    assert plant.apply(99.0, 0.0) == 10.0
    assert plant.measure(1.0) == 10.0
    assert plant.apply(3.7, 1.0) == 3.7  # reported before rounding
    assert plant.measure(2.0) == 4.0


def test_noise_is_seeded_and_as_strong_as_promised() -> None:
    def outputs(seed: int) -> list[float]:
        plant = ArxPlant(first_order(0.5, 1.0), noise=2.0, sensor_noise=1.0, rng=np.random.default_rng(seed))
        return [plant.measure(float(k)) for k in range(20_000)]

    assert outputs(1) == outputs(1)
    # var = noise²/(1 − a²) + sensor_noise²
    assert np.std(outputs(2)) == pytest.approx(math.sqrt(4.0 / 0.75 + 1.0), rel=0.03)


def test_an_unstable_plant_stays_finite() -> None:
    plant = ArxPlant(first_order(1e200, 1.0), output=1.0)
    plant.measure(0.0)
    assert math.isfinite(plant.measure(10.0))


def test_mistakes_are_refused() -> None:
    with pytest.raises(InvalidValue, match="standard deviation >= 0, got -1"):
        ArxPlant(first_order(0.5, 1.0), noise=-1.0)
    with pytest.raises(InvalidValue, match="needs a random generator"):
        ArxPlant(first_order(0.5, 1.0), noise=1.0)
    with pytest.raises(InvalidValue, match="one command, got 2 commands"):
        ArxPlant(first_order(0.5, 1.0)).apply((1.0, 2.0), 0.0)
