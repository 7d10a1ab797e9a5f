"""Verification of loops with several commands: poles, sensitivity peak and disk margin, cut at the actuators.

One margin at a time means little when several actuators can be off together. With S = (I + L)⁻¹ and T = I − S, the
disk margin α = 2 / max σ̄(S − T) covers all of them at once: the loop stays stable when every actuator's gain is
off by any factor between (2 − α)/(2 + α) and (2 + α)/(2 − α), or its phase by up to 2·arctan(α/2), each actuator
differently. σ̄ is the largest singular value; the sensitivity peak is max σ̄(S).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flyball.control.gains import MatrixGains
from flyball.control.models import StateSpace, add_error_sums
from flyball.control.verification.response import settling_from_radius
from flyball.control.verification.verify import Method, Verdict, shortcomings
from flyball.errors import InvalidValue

# Dense near 0, where integral action makes everything large, and even up to π.
_FREQUENCIES = np.concatenate([np.geomspace(1e-4, 0.05, 60), np.linspace(0.055, math.pi, 300)])


@dataclass(frozen=True)
class MatrixCertificate:
    """What is known about a loop with several commands; margins hold for all at once, None when unstable."""

    verdict: Verdict
    reason: str
    poles: tuple[complex, ...]
    radius: float
    disk_margin: float | None
    gain_margin: float | None
    gain_reduction: float | None
    phase_margin_deg: float | None
    sensitivity_peak: float | None
    settling: float | None
    method: Method = "proven"

    @property
    def accepted(self) -> bool:
        return self.verdict == "accepted"


def verify_matrix(model: StateSpace, gains: MatrixGains) -> MatrixCertificate:
    """Judge state feedback with integral action by the same limits as a single loop.

    >>> from flyball.control.models import first_order
    >>> gains = MatrixGains(K=np.array([[0.3]]), Ki=np.array([[0.2]]))
    >>> verify_matrix(first_order(0.6, 1.0).to_state_space(), gains).verdict
    'accepted'
    """
    integral = gains.Ki.size > 0
    A, B = add_error_sums(model, integral)
    K = np.hstack([gains.K, -gains.Ki]) if integral else gains.K
    if K.shape != (B.shape[1], A.shape[0]):
        raise InvalidValue(
            f"gains of shape {K.shape} do not fit a model of {A.shape[0]} states, {B.shape[1]} commands"
        )
    poles = np.linalg.eigvals(A - B @ K)
    radius = float(np.abs(poles).max())
    listed = tuple(complex(pole) for pole in sorted(poles, key=lambda pole: (-abs(pole), -pole.imag)))
    if radius >= 1.0:
        reason = f"a closed-loop pole has radius {radius:.4g}, outside the unit circle"
        return MatrixCertificate("unstable", reason, listed, radius, None, None, None, None, None, None)
    z = np.exp(1j * _FREQUENCIES)[:, None, None]
    # S = I − K·(zI − A + B·K)⁻¹·B needs no inverse of the open loop, which is infinite at an integrator.
    inner = np.linalg.solve(
        z * np.eye(A.shape[0]) - (A - B @ K), np.broadcast_to(B.astype(complex), (z.size, *B.shape))
    )
    sensitivity = np.eye(B.shape[1]) - K @ inner
    complementary = np.eye(B.shape[1]) - sensitivity
    peak = float(np.linalg.norm(sensitivity, ord=2, axis=(1, 2)).max())
    alpha = 2.0 / float(np.linalg.norm(sensitivity - complementary, ord=2, axis=(1, 2)).max())
    grow = (2.0 + alpha) / (2.0 - alpha) if alpha < 2.0 else math.inf
    phase = math.degrees(2.0 * math.atan(alpha / 2.0))
    lacking = shortcomings(grow, 1.0 / grow, phase, peak)
    verdict: Verdict = "fragile" if lacking else "accepted"
    reason = (
        "stable, but " + " and ".join(lacking)
        if lacking
        else f"stable with gain margin {grow:.3g} and phase margin {phase:.3g}° for all commands at once, and"
        f" sensitivity peak {peak:.3g}"
    )
    return MatrixCertificate(
        verdict, reason, listed, radius, alpha, grow, 1.0 / grow, phase, peak, settling_from_radius(radius)
    )
