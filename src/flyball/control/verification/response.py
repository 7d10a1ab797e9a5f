"""What a closed loop will do after a step of its setpoint: settling, overshoot and the error that remains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_banded

from flyball.control.models import Array

BAND = 0.02  # settled: within 2 % of the final value, from there on
_LONGEST = 4000  # samples; a loop slower than this is described by its slowest pole alone


@dataclass(frozen=True, slots=True)
class StepResponse:
    """Settling in samples (None: not within 4,000), overshoot and remaining error as fractions of the step."""

    settling: int | None
    overshoot: float
    steady_state_error: float


def settling_from_radius(radius: float) -> float:
    """Samples until a mode of this radius has decayed to e⁻⁴ ≈ 2 %: −4/ln(radius).

    >>> round(settling_from_radius(0.985)), round(settling_from_radius(math.exp(-0.8)), 6)
    (265, 5.0)
    """
    if radius >= 1.0:
        return math.inf
    return 0.0 if radius <= 0.0 else -4.0 / math.log(radius)


def simulate_step(numerator: Array, characteristic: Array, samples: int) -> Array:
    """The output y(0) … y(samples−1) of numerator/characteristic for a unit step at sample 0.

    The recursion Σ cᵢ·y(k−i) = Σ nᵢ·r(k−i) over all k is a banded triangular system: solved as one.

    >>> simulate_step(np.array([0.5]), np.array([1.0, -0.5]), 4).tolist()
    [0.0, 0.5, 0.75, 0.875]
    """
    order = characteristic.size - 1
    drive = np.zeros(samples)
    lag = characteristic.size - numerator.size
    for power, coefficient in enumerate(numerator):
        drive[power + lag :] += coefficient
    bands = np.repeat(characteristic[:, None], samples, axis=1)
    return np.asarray(solve_banded((min(order, samples - 1), 0), bands[:samples], drive), dtype=float)


def step_response(numerator: Array, characteristic: Array, radius: float) -> StepResponse:
    """Predict the response of a stable loop; `radius` is the modulus of its slowest pole."""
    final = float(numerator.sum() / characteristic.sum())  # the value of the transfer function at z = 1
    error = 1.0 - final
    if abs(error) < 1e-9:
        error = 0.0
    if final == 0.0:
        return StepResponse(None, 0.0, error)
    # A mode of multiplicity m decays like k^(m−1)·radius^k: three times the settling time shows it settled.
    samples = int(min(_LONGEST, 3.0 * settling_from_radius(radius) + 4 * characteristic.size))
    relative = simulate_step(numerator, characteristic, samples) / final
    outside = np.flatnonzero(np.abs(relative - 1.0) > BAND)
    settled = int(outside[-1]) + 1 if outside.size else 0
    overshoot = float(max(0.0, relative.max() - 1.0))
    return StepResponse(settled if settled < samples else None, overshoot if overshoot > 1e-9 else 0.0, error)


def loop_gain(numerator: Array, denominator: Array) -> tuple[Array, npt.NDArray[np.complex128]]:
    """Frequencies from 0.001 to π radians a sample, and the loop gain there, but for those where it is infinite.

    >>> frequencies, gain = loop_gain(np.array([0.5]), np.array([1.0, -0.5]))
    >>> round(float(frequencies[-1]), 3), complex(gain[-1].round(3))
    (3.142, (-0.333-0j))
    """
    frequencies = np.geomspace(1e-3, math.pi, 600)
    z = np.exp(1j * frequencies)
    below = np.polyval(denominator, z)
    finite = np.abs(below) > 1e-12 * np.abs(denominator).sum()
    gain = np.polyval(numerator, z[finite]) / below[finite]
    return frequencies[finite], np.asarray(gain, dtype=np.complex128)
