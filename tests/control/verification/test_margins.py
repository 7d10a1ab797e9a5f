"""Margins are confirmed by using them up: at the margin the loop is about to leave stability, before it is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flyball.control.gains import Gains
from flyball.control.models import Array, Arx, first_order
from flyball.control.polynomials import Loop, closed_loop
from flyball.control.verification.margins import margins


def stable_loops(seed: int, count: int) -> list[Loop]:
    rng = np.random.default_rng(seed)
    found: list[Loop] = []
    while len(found) < count:
        order = int(rng.integers(1, 4))
        a = tuple(float(x) for x in -np.poly(rng.uniform(-0.9, 1.05, order))[1:])
        b = tuple(float(x) for x in rng.normal(size=int(rng.integers(1, 3))))
        kp, ki, kd = (float(x) for x in rng.normal(size=3) * (0.3, 0.15, 0.1) * rng.integers(0, 2, size=3))
        loop = closed_loop(Arx(a, b, int(rng.integers(0, 4))), Gains(kp, ki, kd).polynomials())
        if radius(loop.characteristic) < 0.999 and np.any(loop.numerator):
            found.append(loop)
    return found


def radius(polynomial: Array) -> float:
    return float(np.abs(np.roots(polynomial)).max(initial=0.0))


def with_gain(loop: Loop, factor: float) -> float:
    return radius(np.asarray(np.polyadd(loop.denominator, factor * loop.numerator), dtype=float))


SEED = 20_240_613


@pytest.mark.parametrize("loop", stable_loops(SEED, 150))
def test_gain_margins_are_where_stability_ends(loop: Loop) -> None:
    found = margins(loop.numerator, loop.denominator)
    # Inside the margins every gain is stable, at the margin a pole is on the circle.
    low = found.gain_reduction
    high = min(found.gain, 50.0)
    for factor in np.linspace(low + 1e-3 * (1.0 - low), high - 1e-3 * (high - 1.0), 12):
        assert with_gain(loop, float(factor)) < 1.0
    if math.isfinite(found.gain):
        assert on_circle(loop, found.gain)
    if low > 0.0:
        assert on_circle(loop, low)


def on_circle(loop: Loop, factor: float) -> bool:
    moduli = np.abs(np.roots(np.polyadd(loop.denominator, factor * loop.numerator)))
    return bool(np.abs(moduli - 1.0).min() < 1e-5)


def distance_to_minus_one(loop: Loop, phase: float = 0.0, delay: float = 0.0) -> float:
    """How near the curve of L, turned by a phase or late by a delay, comes to −1: a grid, then a finer one."""
    omega = np.linspace(1e-6, math.pi, 5_001)
    for _ in range(4):
        z = np.exp(1j * omega)
        curve = np.polyval(loop.numerator, z) / np.polyval(loop.denominator, z)
        distance = np.abs(1.0 + curve * np.exp(1j * (phase - omega * delay)))
        nearest = int(distance.argmin())
        step = omega[1] - omega[0]
        omega = np.linspace(max(1e-9, omega[nearest] - step), min(math.pi, omega[nearest] + step), 5_001)
    return float(distance.min())


def late(loop: Loop, samples: int) -> float:
    return radius(np.polyadd(np.concatenate([loop.denominator, np.zeros(samples)]), loop.numerator))


@pytest.mark.parametrize("loop", stable_loops(SEED + 1, 100))
def test_the_phase_margin_is_where_the_turned_curve_meets_minus_one(loop: Loop) -> None:
    margin = math.radians(min(margins(loop.numerator, loop.denominator).phase_deg, 180.0))
    for fraction in (0.25, 0.5, 0.75, 0.95):
        assert distance_to_minus_one(loop, phase=fraction * margin) > 1e-6
        assert distance_to_minus_one(loop, phase=-fraction * margin) > 1e-6
    if margin < math.pi - 1e-9:
        nearest = min(distance_to_minus_one(loop, phase=margin), distance_to_minus_one(loop, phase=-margin))
        assert nearest < 1e-5


@pytest.mark.parametrize("loop", stable_loops(SEED + 3, 150))
def test_the_delay_margin_is_the_delay_that_ends_stability(loop: Loop) -> None:
    margin = margins(loop.numerator, loop.denominator).delay
    for samples in range(1, 12):
        if samples < margin:
            assert late(loop, samples) < 1.0
    if margin <= 12.0:
        whole = margin == int(margin) and late(loop, int(margin)) >= 1.0
        assert whole or distance_to_minus_one(loop, delay=margin) < 1e-5


@pytest.mark.parametrize("loop", stable_loops(SEED + 2, 150))
def test_the_sensitivity_peak_is_the_highest_point_of_a_dense_grid(loop: Loop) -> None:
    z = np.exp(1j * np.linspace(0.0, math.pi, 40_001))
    on_grid = np.abs(np.polyval(loop.denominator, z) / np.polyval(loop.characteristic, z)).max()
    assert margins(loop.numerator, loop.denominator).sensitivity_peak == pytest.approx(on_grid, rel=1e-4)


def test_the_crossing_at_minus_one_is_found() -> None:
    """z − a + b·Kp has its root at −1 for Kp = (1 + a)/b, the upper end of the stable range of a P."""
    loop = closed_loop(first_order(0.26, 59.73), Gains(0.005).polynomials())
    assert margins(loop.numerator, loop.denominator).gain == pytest.approx(1.26 / 59.73 / 0.005)


def test_the_crossing_at_plus_one_is_found() -> None:
    """A negative P gain on this plant fails at z = 1, for Kp = (a − 1)/b: the lower end of that range."""
    loop = closed_loop(first_order(0.26, 59.73), Gains(-0.005).polynomials())
    assert margins(loop.numerator, loop.denominator).gain == pytest.approx(-0.74 / 59.73 / -0.005)


def test_a_conditionally_stable_loop_has_a_least_gain() -> None:
    """An unstable plant, a = 1.2, needs Kp·b above 0.2 and below 2.2."""
    loop = closed_loop(first_order(1.2, 1.0), Gains(0.8).polynomials())
    found = margins(loop.numerator, loop.denominator)
    assert found.gain_reduction == pytest.approx(0.25)
    assert found.gain == pytest.approx(2.75)


def test_a_loop_that_hardly_acts_bears_any_gain() -> None:
    loop = closed_loop(first_order(0.0, 1.0), Gains(-2e-309).polynomials())
    found = margins(loop.numerator, loop.denominator)
    assert found.gain == math.inf
    assert found.sensitivity_peak == 1.0
