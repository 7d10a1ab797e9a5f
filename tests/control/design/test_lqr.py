"""LQR: the Riccati equation, python-control's gains, no steady error, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import control
from flyball.control.design.lqr import lqr
from flyball.control.models import StateSpace, add_error_sums, first_order
from flyball.errors import InvalidValue


def two_by_two() -> StateSpace:
    A = np.array([[0.9, 0.1], [0.0, 0.7]])
    return StateSpace(A, np.array([[1.0, 0.0], [0.3, 2.0]]), np.eye(2))


def test_python_control_finds_the_same_gains() -> None:
    model = two_by_two()
    found = lqr(model, Q=[1.0, 2.0], R=0.5)
    gain, _, poles = control.dlqr(model.A, model.B, np.diag([1.0, 2.0]), 0.5 * np.eye(2))
    assert np.allclose(found.gains.K, gain)
    assert np.allclose(sorted(np.abs(found.poles)), sorted(np.abs(poles)))
    assert found.gains.Ki.shape == (2, 0)


def test_integral_action_leaves_no_steady_error_under_a_constant_load() -> None:
    model = two_by_two()
    found = lqr(model, Q=1.0, R=1.0, integral=0.2)
    x, total, goal, load = np.zeros(2), np.zeros(2), np.array([3.0, -1.0]), np.array([0.5, -0.2])
    for _ in range(400):
        total = total + goal - model.C @ x  # the sum includes the current error
        u = -found.gains.K @ x + found.gains.Ki @ total
        x = model.A @ x + model.B @ u + load
    assert np.allclose(model.C @ x, goal, atol=1e-6)


def test_the_poles_are_those_of_the_extended_model() -> None:
    model = first_order(0.8, 2.0, delay=2).to_state_space()
    found = lqr(model, Q=np.diag([0.0, 0.0, 4.0]), R=1.0, integral=0.1)
    A, B = add_error_sums(model, True)
    closed = A - B @ np.hstack([found.gains.K, -found.gains.Ki])
    assert np.allclose(sorted(np.abs(np.linalg.eigvals(closed))), sorted(np.abs(found.poles)))
    assert np.abs(found.poles).max() < 1.0


def test_the_mean_of_lanes_is_refused_as_uncontrollable() -> None:
    """Two integrating lanes and one actuator that moves load between them: their mean drifts all the same."""
    model = StateSpace(np.eye(2), np.array([[1.0], [-1.0]]), np.array([[1.0, -1.0]]))
    with pytest.raises(InvalidValue, match="no command moves the mode at 1 "):
        lqr(model, Q=1.0, R=1.0)


@pytest.mark.parametrize(
    ("q", "r", "integral", "message"),
    [
        (1.0, 0.0, None, "R on the commands must be positive"),
        (-1.0, 1.0, None, "Q must be finite and not negative"),
        (np.eye(3), 1.0, None, "Q must be a number or 2×2"),
    ],
)
def test_bad_weights_are_one_sentence(q: object, r: float, integral: None, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        lqr(two_by_two(), q, r, integral)  # type: ignore[arg-type]  # deliberately wrong


def test_more_outputs_than_commands_are_refused() -> None:
    model = StateSpace(np.diag([0.5, 0.6]), np.ones((2, 1)), np.eye(2))
    with pytest.raises(InvalidValue, match="1 commands cannot hold 2 outputs"):
        lqr(model, 1.0, 1.0, integral=1.0)
