"""Recursive least squares: agrees with batch, survives quiet times, follows and notices change."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.identification.identify import identify
from flyball.control.identification.recursive import Rls, RlsState
from flyball.control.identification.signals import Limits, prbs
from flyball.control.models import Array, Arx, first_order
from flyball.errors import InvalidValue

PREFETCH = first_order(0.26, 59.73, offset=20.0)


class Plant:
    """A first-order plant that lives on from one experiment to the next."""

    def __init__(self, model: Arx, noise: float, seed: int) -> None:
        self.model, self.noise, self.y = model, noise, model.gain * 10.0
        self.random = np.random.default_rng(seed)
        self.past = [10.0] * (model.delay + 1)

    def apply(self, u: float) -> float:
        self.past = [u, *self.past[: self.model.delay]]
        disturbance = self.noise * float(self.random.normal())
        drive = self.model.b[0] * self.past[self.model.delay]
        self.y = self.model.a[0] * self.y + drive + self.model.offset + disturbance
        return self.y


def learn(rls: Rls, state: RlsState, plant: Plant, commands: Iterable[float]) -> tuple[RlsState, Array]:
    outputs = [plant.y]
    for u in commands:
        outputs.append(plant.apply(float(u)))
        state = rls.update(state, outputs[-1], float(u))
    return state, np.array(outputs)


def probing(samples: int, seed: int = 1, amplitude: float = 3.0) -> Array:
    return prbs(samples, 10.0, amplitude, Limits(1.0, 22.0, hold=3), seed)


def deviations(rls: Rls, state: RlsState) -> Array:
    return np.sqrt(np.diagonal(rls.covariance(state)))


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("offset", [True, False])
def test_without_forgetting_it_is_the_batch_estimate(delay: int, offset: bool) -> None:
    model = first_order(0.26, 59.73, delay, 20.0 if offset else 0.0)
    rls = Rls(delay=delay, offset=offset, forgetting=1.0, excitation=0.0)
    u = probing(1500)
    u[: delay + 2] += [1.0, 2.0, 0.5, 1.5][: delay + 2]  # moving from the start, so that no sample is left out
    plant = Plant(model, 20.0, seed=2)
    state, y = learn(rls, rls.initial(), plant, u)
    rows = np.append(u, u[-1])
    # The first sample only sets the scene, and the first command cannot count as a movement.
    fit = identify(rows[1:], y[1:], delay=delay, align="next", offset=offset, whole_range=True)
    found = rls.model(state)
    assert found is not None
    assert found.a == pytest.approx(fit.model.a, abs=2e-3)
    assert found.b == pytest.approx(fit.model.b, rel=2e-3)
    assert found.delay == delay
    assert deviations(rls, state) == pytest.approx(np.sqrt(np.diagonal(fit.covariance)), rel=0.15)
    assert state.drifts == 0


def test_no_estimate_before_there_is_one() -> None:
    rls = Rls()
    state = rls.initial()
    assert rls.model(state) is None
    state, _ = learn(rls, state, Plant(PREFETCH, 20.0, seed=3), [10.0] * 500)
    assert rls.model(state) is None  # an actuator at rest teaches nothing
    state, _ = learn(rls, state, Plant(PREFETCH, 20.0, seed=3), probing(60))
    assert rls.model(state) is not None


@pytest.mark.parametrize("excitation", [1.0, 0.0])
def test_survives_a_hundred_thousand_quiet_samples(excitation: float) -> None:
    """With the gate, and (excitation 0) by directional forgetting alone."""
    rls = Rls(excitation=excitation)
    plant = Plant(PREFETCH, 20.0, seed=4)
    state, _ = learn(rls, rls.initial(), plant, probing(600))
    before = rls.model(state)
    quiet, _ = learn(rls, state, plant, [10.0] * 100_000)
    after = rls.model(quiet)
    assert before is not None
    assert after is not None
    assert after.b[0] == pytest.approx(59.73, rel=0.05)
    assert after.a[0] == pytest.approx(0.26, abs=0.05)
    assert (deviations(rls, quiet) <= 3.0 * deviations(rls, state)).all()
    assert all(math.isfinite(x) for x in quiet.information)
    assert quiet.drifts <= 1
    # and it still learns: no numb estimate either
    plant.model = first_order(0.26, 90.0, offset=20.0)
    woken, _ = learn(rls, quiet, plant, probing(400, seed=9))
    relearnt = rls.model(woken)
    assert relearnt is not None
    assert relearnt.b[0] == pytest.approx(90.0, rel=0.08)


def test_plain_forgetting_would_have_wound_up() -> None:
    """The same quiet time with uniform forgetting: what the directional kind protects from."""
    information = np.diag([1e6, 1e4, 1e2])
    phi = np.array([800.0, 10.0, 1.0])
    for _ in range(2000):
        information = 0.98 * information + np.outer(phi, phi)
    assert np.linalg.eigvalsh(information)[0] < 1e-8


def test_follows_a_slow_drift() -> None:
    errors = {}
    for forgetting in (0.95, 1.0):
        rls = Rls(forgetting=forgetting, false_alarm_samples=1e300)  # by forgetting alone, not by alarms
        plant = Plant(PREFETCH, 10.0, seed=5)
        state, _ = learn(rls, rls.initial(), plant, probing(300))
        signal = probing(1000, seed=6)
        for k in range(1000):
            plant.model = first_order(0.26 + 0.0002 * k, 59.73 - 0.03 * k, offset=20.0)
            u = float(signal[k])
            state = rls.update(state, plant.apply(u), u)
        found = rls.model(state)
        assert found is not None
        errors[forgetting] = abs(found.b[0] / plant.model.b[0] - 1.0)
    assert errors[0.95] < 0.08 < 0.15 < errors[1.0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("changed", [first_order(0.26, 120.0, offset=20.0), first_order(0.7, 59.73, offset=20.0)])
def test_notices_a_sudden_change_and_relearns(changed: Arx, seed: int) -> None:
    rls = Rls()
    plant = Plant(PREFETCH, 20.0, seed)
    state, _ = learn(rls, rls.initial(), plant, probing(500))
    assert state.drifts == 0
    plant.model = changed
    state, _ = learn(rls, state, plant, probing(30, seed=7))
    assert state.drifts == 1, f"seed {seed}"
    state, _ = learn(rls, state, plant, probing(300, seed=8))
    found = rls.model(state)
    assert found is not None
    assert found.gain == pytest.approx(changed.gain, rel=0.1)


def test_raises_no_false_alarms() -> None:
    alarms = 0
    for seed in range(10):
        rls = Rls()
        state, _ = learn(rls, rls.initial(), Plant(PREFETCH, 20.0, 100 + seed), probing(4000, seed))
        alarms += state.drifts
    assert alarms == 0


def closed_loop(rls: Rls, *, samples: int, probe: float, seed: int) -> RlsState:
    """A PI loop at a constant goal: the command answers the noise, plus a probing signal of amplitude `probe`."""
    plant = Plant(PREFETCH, 20.0, seed)
    fit_model = first_order(0.26, 59.73, offset=20.0)
    cov = np.diag([0.02, 3.0, 30.0]) ** 2
    state = rls.initial(fit_model, cov, 20.0)
    integral, signal = 10.0, prbs(samples, 0.0, 1.0, Limits(-1.0, 1.0, hold=3), seed + 1)
    for k in range(samples):
        error = 827.0 - plant.y
        integral += 0.004 * error
        u = 0.002 * error + integral + probe * float(signal[k])
        state = rls.update(state, plant.apply(u), u)
    return state


def test_closed_loop_data_are_used_only_when_probing() -> None:
    rls = Rls()
    resting = closed_loop(rls, samples=3000, probe=0.0, seed=10)
    probed = closed_loop(rls, samples=3000, probe=1.5, seed=10)
    assert resting.updates < 150  # while it starts, not while it rests
    assert probed.updates > 2500
    found = rls.model(probed)
    assert found is not None
    assert found.b[0] == pytest.approx(59.73, rel=0.1)
    known = rls.model(resting)
    assert known is not None
    assert known.b[0] == pytest.approx(59.73, rel=0.15)


def test_min_movement_closes_the_gate() -> None:
    rls = Rls(min_movement=5.0)
    state, _ = learn(rls, rls.initial(), Plant(PREFETCH, 20.0, seed=11), probing(300))
    assert state.updates == 0
    assert rls.model(state) is None


def test_starts_from_a_batch_fit() -> None:
    plant = Plant(PREFETCH, 20.0, seed=12)
    rls = Rls()
    u = probing(500)
    _, y = learn(rls, rls.initial(), plant, u)
    fit = identify(np.append(u, u[-1]), y, align="next", delay=0, whole_range=True)
    state = rls.initial(fit.model, fit.covariance, fit.noise_std)
    assert rls.model(state) == fit.model
    assert rls.covariance(state) == pytest.approx(fit.covariance, rel=1e-4)


@given(
    seed=st.integers(0, 10_000),
    gaps=st.lists(st.tuples(st.integers(0, 299), st.sampled_from(["y", "u", "nan", "inf"])), max_size=60),
)
def test_missing_samples_are_passed_over(seed: int, gaps: list[tuple[int, str]]) -> None:
    rls = Rls(delay=1)
    plant = Plant(first_order(0.5, 30.0, delay=1, offset=5.0), 1.0, seed)
    state = rls.initial()
    holes = dict(gaps)
    for k, u in enumerate(probing(300, seed=seed)):
        y: float | None = plant.apply(float(u))
        applied: float | None = float(u)
        match holes.get(k):
            case "y":
                y = None
            case "u":
                applied = None
            case "nan":
                y = math.nan
            case "inf":
                applied = math.inf
        state = rls.update(state, y, applied)
    assert all(math.isfinite(x) for x in (*state.theta, *state.information, state.noise_variance))
    found = rls.model(state)
    assert found is not None
    assert found.b[0] == pytest.approx(30.0, rel=0.05)


def test_state_is_storable() -> None:
    rls = Rls(delay=2)
    plant = Plant(first_order(0.5, 30.0, delay=2), 1.0, seed=13)
    state, _ = learn(rls, rls.initial(), plant, probing(100))
    stored: dict[str, Any] = json.loads(json.dumps(asdict(state)))
    for name in ("theta", "information", "commands", "squares"):
        stored[name] = tuple(stored[name])
    restored = RlsState(**stored)
    assert restored == state
    assert rls.update(restored, 500.0, 11.0) == rls.update(state, 500.0, 11.0)


def test_huge_numbers_leave_the_estimate_usable() -> None:
    rls = Rls()
    state, _ = learn(rls, rls.initial(), Plant(PREFETCH, 20.0, seed=14), probing(200))
    for y in (1e200, -1e308, 1e308):
        state = rls.update(state, y, 1e160)
    assert all(math.isfinite(x) for x in (*state.theta, *state.information))
    assert rls.model(state) is not None


@pytest.mark.parametrize(
    "options",
    [{"delay": -1}, {"forgetting": 0.0}, {"forgetting": 1.1}, {"window": 1}, {"excitation": math.nan}],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as error:
        Rls(**options)
    assert next(iter(options)) in str(error.value)


def test_wrong_starts() -> None:
    with pytest.raises(InvalidValue, match="delay 0"):
        Rls().initial(first_order(0.5, 1.0, delay=1))
    with pytest.raises(InvalidValue, match="noise_std"):
        Rls().initial(PREFETCH, np.eye(3))
    with pytest.raises(InvalidValue, match="3×3"):
        Rls().initial(PREFETCH, np.eye(2), 1.0)


def test_with_a_known_pole_the_gain_is_learnt_from_a_loop_at_rest() -> None:
    """y = 40·u with a command that hardly moves: a and b together could not be distinguished."""
    rls = Rls(pole=0.0, offset=False, forgetting=0.9, excitation=0.0)
    rng, state = np.random.default_rng(1), rls.initial()
    for k in range(60):
        u = 10.0 + 0.01 * (k % 2)
        state = rls.update(state, 40.0 * u * (1.0 + 0.02 * rng.standard_normal()), u)
    found = rls.model(state)
    assert found is not None
    assert found.a == (0.0,)
    assert found.b[0] == pytest.approx(40.0, rel=0.02)
    deviations = np.sqrt(np.diagonal(rls.covariance(state)))
    assert deviations[0] < 1e-9
    assert 0.0 < deviations[1] < 2.0
