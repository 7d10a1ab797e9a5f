"""Identification of generated plants, inputs, noise, gaps and feedback, compared with the true plant."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.control.identification.identify import Fit, identify
from flyball.control.identification.regressors import join_recordings
from flyball.control.identification.signals import Limits, prbs
from flyball.control.models import Array, Arx, first_order
from flyball.errors import InvalidValue
from tests.new_cases import case_seed

pytestmark = pytest.mark.hypothesis  # its cases are generated, too


def random_plant(rng: np.random.Generator) -> Arx:
    a = float(rng.uniform(0.0, 0.95))
    b = float(10.0 ** rng.uniform(-1.0, 1.0) * rng.choice([-1.0, 1.0]))
    return first_order(a, b, int(rng.integers(0, 4)), float(rng.normal(0.0, 5.0)))


def random_input(rng: np.random.Generator, samples: int) -> Array:
    kind = rng.integers(0, 3)
    if kind == 0:
        return prbs(samples, 10.0, 4.0, Limits(0.0, 20.0, hold=int(rng.integers(1, 5))), int(rng.integers(1, 999)))
    levels = rng.uniform(2.0, 18.0, samples)
    return np.asarray(levels if kind == 1 else np.repeat(levels, 8)[:samples])


def record(plant: Arx, u: Array, rng: np.random.Generator, *, process: float = 0.0, sensor: float = 0.0) -> Array:
    """Outputs as telemetry has them: row k was measured before its command had an effect (`next`)."""
    (a,), (b,) = plant.a, plant.b
    y = np.empty(u.size + 1)
    y[0] = (b * u[0] + plant.offset) / (1.0 - a)
    for k in range(u.size):
        y[k + 1] = a * y[k] + b * u[max(0, k - plant.delay)] + plant.offset + process * rng.normal()
    return np.asarray((y + sensor * rng.normal(size=y.size))[:-1])


def warned(fit: Fit, words: str) -> bool:
    return any(words in warning for warning in fit.warnings)


@pytest.mark.parametrize("align", ["next", "auto"])
def test_open_loop_plants(align: str) -> None:
    """Delay, pole and gain, with noise in the plant or in the sensor up to half of what the input moves."""
    first = 1000 * case_seed()
    for seed in range(first, first + 40):
        rng = np.random.default_rng(seed)
        plant = random_plant(rng)
        u = random_input(rng, int(rng.integers(200, 400)))
        noise = abs(plant.b[0]) * 4.0 * 10.0 ** rng.uniform(-2.0, -0.3)
        noisy_sensor = bool(rng.random() < 0.5)
        y = record(plant, u, rng, process=noise * (0.1 if noisy_sensor else 1.0), sensor=noise * noisy_sensor)
        fit = identify(u, y, align=align)  # type: ignore[arg-type]  # a parameter of the test
        assert (fit.model.delay, fit.align) == (plant.delay, "next"), f"seed {seed}: {fit}"
        assert fit.model.is_stable, f"seed {seed}"
        assert fit.model.gain == pytest.approx(plant.gain, rel=0.15), f"seed {seed}"
        assert not warned(fit, "feedback"), f"seed {seed}: {fit.warnings}"


def test_output_error_removes_the_bias_of_a_noisy_sensor() -> None:
    first, errors, plain = 1000 * case_seed(), [], []
    for seed in range(first, first + 15):
        rng = np.random.default_rng(seed)
        plant = first_order(float(rng.uniform(0.6, 0.9)), 2.0, int(rng.integers(0, 3)), 3.0)
        u = prbs(400, 10.0, 4.0, Limits(0.0, 20.0, hold=3), seed + 1)
        y = record(plant, u, rng, sensor=8.0)
        fit = identify(u, y, align="next")
        assert fit.model.delay == plant.delay, f"seed {seed}"
        errors.append(fit.model.a[0] - plant.a[0])
        columns = np.column_stack([y[9:-1], u[9 - plant.delay : u.size - 1 - plant.delay], np.ones(y.size - 10)])
        plain.append(float(np.linalg.lstsq(columns, y[10:], rcond=None)[0][0]) - plant.a[0])
        if fit.method == "output error":
            low, high = fit.confidence["a"]
            assert high - low < 0.3
    assert float(np.mean(plain)) < -0.1  # what least squares makes of it
    assert abs(float(np.mean(errors))) < 0.04


def closed_loop(
    rng: np.random.Generator, kp: float, ki: float, *, probe: float, step: float, samples: int = 400
) -> tuple[Array, Array]:
    """Rows of telemetry of a loop on y(k+1) = 0.8·y(k) + 2·u(k) with noise 1."""
    y, u, integral = np.empty(samples + 1), np.empty(samples), 5.0
    y[0] = 50.0
    for k in range(samples):
        error = 50.0 + (step if k // 50 % 2 else 0.0) - y[k]
        integral += ki * error
        u[k] = kp * error + integral + probe * rng.choice([-1.0, 1.0])
        y[k + 1] = 0.8 * y[k] + 2.0 * u[k] + rng.normal()
    return u, y[:-1]


def test_closed_loop_data_never_give_the_controller_unsaid() -> None:
    first, runs, recognised = 1000 * case_seed(), 0, 0
    for seed in range(first, first + 60):
        rng = np.random.default_rng(seed)
        kp, ki = float(rng.choice([0.0, rng.uniform(0.05, 0.3)])), float(rng.uniform(0.002, 0.05))
        excited = bool(rng.random() < 0.7)
        probe, step = (0.0, 0.0) if not excited else (float(rng.choice([0.0, 0.3])), 0.0)
        step = 10.0 if excited and not probe else step
        fit = identify(*closed_loop(rng, kp, ki, probe=probe, step=step))
        low, high = fit.confidence["b"]
        if high < 0.0:
            assert warned(fit, "controller turned round"), f"seed {seed}: {fit}"
        if excited:
            assert low < 2.0 < high or abs(fit.model.b[0] - 2.0) < 0.6, f"seed {seed}: {fit}"
            runs += 1
            recognised += warned(fit, "answers the output")
    assert recognised > 0.5 * runs, f"{recognised} of {runs}"


def test_a_proportional_controller_without_a_probe_is_refused() -> None:
    u, y = closed_loop(np.random.default_rng(case_seed()), 0.2, 0.0, probe=0.0, step=0.0)
    with pytest.raises(InvalidValue, match="determine each other exactly"):
        identify(u, y)


def test_gaps_are_no_neighbours() -> None:
    """30 % of the rows missing: as gaps the plant comes out right; removed, it does not, which is why."""
    removed = []
    for seed in range(1000 * case_seed(), 1000 * case_seed() + 10):
        rng = np.random.default_rng(seed)
        plant = first_order(0.9, 2.0, int(rng.integers(0, 2)), 5.0)
        u = rng.uniform(2.0, 22.0, 600)
        y = record(plant, u, rng, process=1.0)
        missing = rng.random(600) < 0.3
        gapped = identify(np.where(missing, np.nan, u), np.where(missing, np.nan, y), gaps=True, align="next")
        assert gapped.model.a[0] == pytest.approx(0.9, abs=0.02), f"seed {seed}"
        assert gapped.model.delay == plant.delay, f"seed {seed}"
        removed.append(identify(u[~missing], y[~missing], align="next", delay=plant.delay).model.a[0] - 0.9)
    assert float(np.mean(np.abs(removed))) > 0.02


def test_several_recordings_are_one_fit() -> None:
    rng = np.random.default_rng(case_seed())
    plant = first_order(0.7, 3.0, 1, 10.0)
    pieces = []
    for level in (0.0, 40.0, -30.0):
        u = rng.uniform(2.0, 12.0, 60) + level
        pieces.append((u, record(plant, u, rng, process=1.0)))
    fit = identify(*join_recordings(pieces, reach=12), gaps=True, align="next")
    assert fit.model.delay == 1
    assert fit.model.a[0] == pytest.approx(0.7, abs=0.02)
    assert fit.score.samples <= 3 * 58


@pytest.mark.parametrize("seed", range(6))
def test_a_smooth_or_periodic_input_cannot_tell_the_delay(seed: int) -> None:
    """The smallest delay that fits is taken, and it is said that the input could not tell."""
    rng = np.random.default_rng(seed)
    plant = first_order(float(rng.uniform(0.2, 0.7)), 2.0, 0, 3.0)
    k = np.arange(300.0)
    u = 10.0 + 0.05 * k if seed % 2 else 10.0 + 5.0 * np.sin(2.0 * np.pi * k / 25.0)
    fit = identify(u, record(plant, u, rng, process=1.0))
    assert fit.model.delay <= 1
    assert fit.model.is_stable
    assert warned(fit, "smooth or periodic")


def test_one_row_late_and_one_sample_of_delay_cannot_be_told_apart() -> None:
    rng = np.random.default_rng(case_seed())
    u = rng.uniform(2.0, 22.0, 300)
    y = record(first_order(0.26, 59.73), u, rng, process=60.0)
    fit = identify(u, y)
    assert (fit.model.delay, fit.design_delay) == (0, 1)
    assert identify(u, y, align="next").design_delay == 0
    assert identify(u, y, align="same").design_delay == 1


def test_a_saturating_plant_is_fitted_on_its_linear_part() -> None:
    for seed in range(1000 * case_seed(), 1000 * case_seed() + 10):
        rng = np.random.default_rng(seed)
        limit = float(rng.uniform(10.0, 25.0))
        u = np.repeat(rng.uniform(1.0, 40.0, 200), 3)
        y = record(first_order(0.4, 20.0, 0, 10.0), np.minimum(u, limit), rng, process=10.0)
        fit = identify(u, y, align="next")
        assert fit.linear_range[1] == pytest.approx(limit, abs=2.5), f"seed {seed}"
        assert fit.model.gain == pytest.approx(20.0 / 0.6, rel=0.1), f"seed {seed}"
