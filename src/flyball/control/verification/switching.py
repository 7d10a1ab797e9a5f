"""Is a loop stable while its gains switch? Each set of gains can be stable and their alternation not.

Gains that take over from the applied command act as increments, Δu(k) = −Kp·Δy(k) − Ki·y(k) − Kd·Δ²y(k), so all
sets share one state: the last outputs and commands. The loop is then a product of matrices, one a sample, in any
order. It is stable in every order if all products of some length are contractions in one norm, and unstable in
some order if a product has an eigenvalue outside the unit circle. Where neither shows up to the length that is
tried, nothing is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from flyball.control.gains import Gains
from flyball.control.models import Array, Arx

Switching: TypeAlias = Literal["stable", "unstable", "unproven"]
_MOST_PRODUCTS = 5000


def judge_switching(plant: Arx, schedule: Sequence[Gains]) -> Switching:
    """Judge the loop that may have any of these gains at any sample, each of them stable by itself.

    >>> from flyball.control.models import first_order
    >>> judge_switching(first_order(0.5, 1.0), [Gains(0.1, 0.1), Gains(0.2, 0.2)])
    'stable'
    """
    matrices = np.array([_one_sample(plant, gains) for gains in schedule])
    # In the coordinates of the mean Lyapunov function the matrices are nearly contractions already.
    energy = np.mean([solve_discrete_lyapunov(matrix.T, np.eye(len(matrix))) for matrix in matrices], axis=0)
    root = np.linalg.cholesky(energy).T
    matrices = root @ matrices @ np.linalg.inv(root)
    products = matrices
    while True:
        if float(np.linalg.norm(products, ord=2, axis=(1, 2)).max()) < 1.0:
            return "stable"
        if float(np.abs(np.linalg.eigvals(products)).max()) >= 1.0:
            return "unstable"
        if len(products) * len(matrices) > _MOST_PRODUCTS:
            return "unproven"
        products = np.concatenate([products @ matrix for matrix in matrices])


def _one_sample(plant: Arx, gains: Gains) -> Array:
    """The state y(k), y(k−1), y(k−2), …, u(k−1), u(k−2), … one sample later, at the set point 0."""
    outputs, inputs = max(plant.order, 3), plant.delay + len(plant.b)
    size = outputs + inputs
    command = np.zeros(size)  # u(k) from the state
    command[:3] = [-gains.kp - gains.ki - gains.kd, gains.kp + 2.0 * gains.kd, -gains.kd]
    command[outputs] = 1.0
    following = np.zeros((size, size))
    following[0, : plant.order] = plant.a
    for j, b in enumerate(plant.b):
        age = plant.delay + j
        following[0] += b * (command if age == 0 else np.eye(size)[outputs + age - 1])
    following[1:outputs, : outputs - 1] = np.eye(outputs - 1)
    following[outputs] = command
    following[outputs + 1 :, outputs : size - 1] = np.eye(inputs - 1)
    return following
