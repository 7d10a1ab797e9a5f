"""Balancing N lanes: a model of their differences, for LQR.

Lane i answers its share wᵢ of the load with yᵢ(k+1) = a·yᵢ(k) + b·wᵢ(k−D) + load. Shares add up to one whatever
the controller does, so the mean of all yᵢ cannot be controlled: only N − 1 differences can. With H, (N−1)×N, whose
rows are orthonormal and sum to zero each, d = H·y are differences and w = Hᵀ·v moves load, the total unchanged::

    d(k+1) = a·d(k) + b·v(k−D)        H·Hᵀ = I, so every difference looks like a single lane

All lanes are treated alike: in lane coordinates the gains are multiples of HᵀH, "own value minus the mean". For
two lanes it is one controller on the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flyball.control.design.lqr import LqrDesign, lqr
from flyball.control.models import Array, Arx, StateSpace
from flyball.errors import InvalidValue


@dataclass(frozen=True, eq=False)
class LaneBalance:
    """Gains in lane coordinates, every matrix N×N with rows and columns that sum to zero::

    w(k) = −on_responses·y(k) − Σⱼ on_shares[j−1]·w(k−j) − on_sums·Σ(y − mean)

    w are changes of the shares against equal ones; `design` is the same in coordinates of the differences.
    """

    on_responses: Array
    on_shares: tuple[Array, ...]
    on_sums: Array
    design: LqrDesign


def differences(lanes: int) -> Array:
    """H: orthonormal rows, each summing to zero (Helmert's contrasts).

    >>> differences(2).round(3).tolist()
    [[0.707, -0.707]]
    >>> bool(np.allclose(differences(5) @ differences(5).T, np.eye(4)))
    True
    """
    if lanes < 2:
        raise InvalidValue(f"balancing needs at least 2 lanes, got {lanes}")
    rows = np.zeros((lanes - 1, lanes))
    for i in range(1, lanes):
        rows[i - 1, :i] = 1.0
        rows[i - 1, i] = -float(i)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float64)


def lane_model(lanes: int, lane: Arx) -> StateSpace:
    """The N − 1 differences of lanes that each behave like `lane` (first order); the shares under way are states.

    >>> from flyball.control.models import first_order
    >>> model = lane_model(4, first_order(0.6, 2.5, delay=1))
    >>> model.states, model.inputs, model.outputs
    (6, 3, 3)
    """
    if lane.order != 1 or len(lane.b) != 1:
        raise InvalidValue(f"a lane must be a first-order model with delay, got a={lane.a}, b={lane.b}")
    n, delay = differences(lanes).shape[0], lane.delay
    eye = np.eye(n)
    size = n * (1 + delay)
    A, B, C = np.zeros((size, size)), np.zeros((size, n)), np.zeros((n, size))
    A[:n, :n] = lane.a[0] * eye
    C[:, :n] = eye
    if delay == 0:
        B[:n] = lane.b[0] * eye
        return StateSpace(A, B, C)
    A[:n, -n:] = lane.b[0] * eye  # the oldest share takes effect,
    B[n : 2 * n] = eye  # the new one joins the queue,
    for j in range(1, delay):  # and the others move on
        A[(j + 1) * n : (j + 2) * n, j * n : (j + 1) * n] = eye
    return StateSpace(A, B, C)


def balance(
    lanes: int, lane: Arx, *, response: float = 1.0, share: float | None = None, integral: float = 0.05
) -> LaneBalance:
    """LQR for lanes: weights on differences of response, on moved shares, and on the sums of differences.

    `share` None weighs a moved share as b² of the response it moves, which makes the result independent of units.

    >>> from flyball.control.models import first_order
    >>> found = balance(3, first_order(0.6, 2.5, delay=1))
    >>> bool(np.allclose(found.on_responses.sum(axis=0), 0.0)), found.on_responses.shape
    (True, (3, 3))
    """
    model = lane_model(lanes, lane)
    n = lanes - 1
    if lane.b[0] == 0.0:
        raise InvalidValue("shares have no effect on these lanes (b = 0): there is nothing to balance")
    weights = np.zeros(model.states)
    weights[:n] = response
    found = lqr(model, weights, lane.b[0] ** 2 if share is None else share, integral)
    H = differences(lanes)

    def in_lanes(gain: npt.NDArray[np.float64]) -> Array:
        return np.asarray(H.T @ gain @ H, dtype=np.float64)

    K = found.gains.K
    # The newest share under way is the first block after the responses, the oldest the last.
    on_shares = tuple(in_lanes(K[:, (j + 1) * n : (j + 2) * n]) for j in range(lane.delay))
    return LaneBalance(in_lanes(K[:, :n]), on_shares, in_lanes(found.gains.Ki), found)
