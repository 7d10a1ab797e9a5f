"""LQR with integral action, for loops with several commands or measurements.

The model gets the sums of the errors as further states (`models.add_error_sums`), so that u = −K·x + Ki·σ, and the
gains minimise Σ xᵀQx + σᵀWσ + uᵀRu, by the discrete algebraic Riccati equation. A sum of errors can be driven to
zero for at most as many outputs as there are commands, and not at all for an output that no command moves: such a
model is refused. For load balancing that is the mean of all lanes; `lane_balance` builds the model without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_discrete_are

from flyball.control.gains import MatrixGains
from flyball.control.models import Array, StateSpace, add_error_sums
from flyball.errors import InvalidValue


@dataclass(frozen=True, eq=False)
class LqrDesign:
    """Gains, the closed-loop poles they give, the model, and the cost matrix of the Riccati equation."""

    gains: MatrixGains
    poles: tuple[complex, ...]
    model: StateSpace
    cost: Array


def lqr(
    model: StateSpace,
    Q: npt.ArrayLike,
    R: npt.ArrayLike,
    integral: npt.ArrayLike | None = None,
) -> LqrDesign:
    """Compute the gains that minimise the quadratic cost; numbers stand for multiples of the identity.

    `integral` is the weight on the sums of errors (a number, one per output, or a matrix); None: no such action.

    >>> from flyball.control.models import first_order
    >>> found = lqr(first_order(0.9, 1.0).to_state_space(), Q=1.0, R=1.0, integral=0.1)
    >>> found.gains.K.shape, found.gains.Ki.shape, all(abs(pole) < 1 for pole in found.poles)
    ((1, 1), (1, 1), True)
    """
    weight_x = _weight("Q", Q, model.states)
    weight_u = _weight("R", R, model.inputs)
    if np.linalg.eigvalsh(weight_u).min() <= 0.0:
        raise InvalidValue("the weight R on the commands must be positive in every direction")
    A, B = add_error_sums(model, integral is not None)
    weight = weight_x
    if integral is not None:
        if model.outputs > model.inputs:
            raise InvalidValue(
                f"{model.inputs} commands cannot hold {model.outputs} outputs without steady error:"
                " leave outputs out, or leave the integral action out"
            )
        weight_i = _weight("integral", integral, model.outputs)
        zeros = np.zeros((model.states, model.outputs))
        weight = np.block([[weight_x, zeros], [zeros.T, weight_i]])
    _refuse_uncontrollable(A, B)
    try:
        cost = np.asarray(solve_discrete_are(A, B, weight, weight_u), dtype=np.float64)
    except (np.linalg.LinAlgError, ValueError):
        raise InvalidValue(
            "the Riccati equation has no stabilising solution: weigh every mode that does not decay by itself in Q"
            " or in the integral action"
        ) from None
    gain = np.asarray(np.linalg.solve(weight_u + B.T @ cost @ B, B.T @ cost @ A), dtype=np.float64)
    poles = np.linalg.eigvals(A - B @ gain)
    if np.abs(poles).max() >= 1.0:
        raise InvalidValue("a mode of this model that does not decay has no weight: give it one in Q")
    gains = MatrixGains(gain[:, : model.states], -gain[:, model.states :])
    return LqrDesign(gains, tuple(complex(pole) for pole in poles), model, cost)


def _weight(name: str, given: npt.ArrayLike, size: int) -> Array:
    weight = np.asarray(given, dtype=np.float64)
    if weight.ndim == 0:
        weight = np.eye(size) * weight
    elif weight.ndim == 1:
        weight = np.diag(weight)
    if weight.shape != (size, size):
        raise InvalidValue(f"the weight {name} must be a number or {size}×{size}, got shape {weight.shape}")
    if not np.all(np.isfinite(weight)) or np.linalg.eigvalsh((weight + weight.T) / 2.0).min() < -1e-12:
        raise InvalidValue(f"the weight {name} must be finite and not negative in any direction")
    return np.asarray((weight + weight.T) / 2.0, dtype=np.float64)


def _refuse_uncontrollable(A: Array, B: Array) -> None:
    """Each mode on or outside the unit circle needs a command: [λI − A, B] of full rank (Hautus)."""
    for mode in np.linalg.eigvals(A):
        if abs(mode) < 1.0 - 1e-9:
            continue
        scaled = B / max(1e-300, float(np.abs(B).max()))
        values = np.linalg.svd(np.hstack([mode * np.eye(A.shape[0]) - A, scaled]), compute_uv=False)
        if values[-1] < 1e-9:
            raise InvalidValue(
                f"no command moves the mode at {mode.real:.3g} (the mean of balanced lanes is one): take it"
                " out of the model, as flyball.control.design.lane_balance does"
            )
