"""Loops with several actuators: agreement with the single loop, and the disk margin used up."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.control.design.lqr import lqr
from flyball.control.gains import MatrixGains
from flyball.control.models import StateSpace, add_error_sums, first_order
from flyball.control.verification.verify import verify
from flyball.control.verification.verify_matrix import verify_matrix


def test_one_actuator_is_judged_like_a_single_loop() -> None:
    """State feedback on y with the sum of errors is the same loop, cut at the same place."""
    from flyball.control.gains import StateGains

    plant = first_order(0.8, 2.0)
    model = StateSpace(np.array([[0.8]]), np.array([[2.0]]), np.eye(1))
    single = verify(plant, StateGains(ki=0.1, ky=(0.2,)))
    found = verify_matrix(model, MatrixGains(np.array([[0.2]]), np.array([[0.1]])))
    assert single.sensitivity_peak is not None
    assert found.sensitivity_peak == pytest.approx(single.sensitivity_peak, rel=1e-3)
    assert found.radius == pytest.approx(single.radius)
    # The disk margin covers gain and phase at once, so it promises no more than either alone.
    assert found.gain_margin is not None
    assert single.gain_margin is not None
    assert found.gain_margin <= single.gain_margin + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_every_actuator_may_be_off_by_the_gain_margin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(3, 3))
    A *= 0.95 / np.abs(np.linalg.eigvals(A)).max()
    model = StateSpace(A, rng.normal(size=(3, 2)), rng.normal(size=(2, 3)))
    design = lqr(model, 1.0, 1.0, integral=0.1)
    found = verify_matrix(model, design.gains)
    assert found.gain_margin is not None
    assert found.gain_margin > 1.0
    E, B = add_error_sums(model, True)
    K = np.hstack([design.gains.K, -design.gains.Ki])
    for one in np.linspace(1.0 / found.gain_margin, found.gain_margin, 7):
        for two in np.linspace(1.0 / found.gain_margin, found.gain_margin, 7):
            radius = np.abs(np.linalg.eigvals(E - B @ np.diag([one, two]) @ K)).max()
            assert radius < 1.0 + 1e-9, f"seed {seed}, factors {one}, {two}"


def test_an_unstable_loop_is_said_to_be() -> None:
    model = StateSpace(np.eye(2) * 0.9, np.eye(2), np.eye(2))
    found = verify_matrix(model, MatrixGains(np.diag([0.1, 2.5]), np.zeros((2, 0))))
    assert found.verdict == "unstable"
    assert "1.6" in found.reason


def test_too_much_gain_is_fragile() -> None:
    model = StateSpace(np.eye(2) * 0.9, np.eye(2), np.eye(2))
    assert verify_matrix(model, MatrixGains(np.diag([0.1, 1.5]), np.zeros((2, 0)))).verdict == "fragile"
