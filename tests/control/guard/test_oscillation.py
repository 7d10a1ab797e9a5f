from __future__ import annotations

import math
import random

import pytest

from flyball.control.guard.oscillation import Swing, follow


def swing_of(errors: list[float], tolerance: float = 1.0) -> Swing:
    swing = Swing()
    for number, error in enumerate(errors):
        swing = follow(swing, number, error, tolerance)
    return swing


@pytest.mark.parametrize("period", [2, 5, 12, 40])
def test_counts_the_half_waves_of_a_steady_swing(period: int) -> None:
    swing = swing_of([10.0 * math.sin(2.0 * math.pi * (k + 0.5) / period) for k in range(20 * period)])
    assert swing.alike >= 36
    assert swing.period == pytest.approx(period, rel=0.15)
    assert swing.above.peak == pytest.approx(10.0, rel=0.3)


def test_a_swing_may_go_further_up_than_down() -> None:
    assert swing_of([100.0, 100.0, -5.0, -5.0, -5.0] * 20).alike >= 36


def test_a_growing_swing_counts_as_well() -> None:
    assert swing_of([1.05**k * (1 if k % 2 else -1) * 2.0 for k in range(40)]).alike >= 30


def test_a_swing_that_dies_down_does_not() -> None:
    assert swing_of([100.0 * 0.8**k * (1 if k % 2 else -1) for k in range(30)], tolerance=0.01).alike < 8


def test_a_swing_within_the_tolerance_is_none() -> None:
    assert swing_of([0.9, -0.9] * 50).alike == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_noise_is_no_swing(memory: float, seed: int) -> None:
    rng, noise, most, swing = random.Random(seed), 0.0, 0, Swing()
    for k in range(20_000):
        noise = memory * noise + rng.gauss(0.0, 1.0)
        swing = follow(swing, k, noise, tolerance=0.5)
        most = max(most, swing.alike)
    assert most < 16, f"seed {seed}"
