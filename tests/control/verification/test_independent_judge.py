"""python-control as an independent judge of poles, margins and the sensitivity peak on thousands of random loops.

Its gain margin looks for crossings between z = 1 and z = −1 and misses both ends; where the margin is at an
end, the ends are added to what it found. Its own distance to −1 comes from a polynomial that loses digits (2
% in one of these cases): its frequency response on a grid, refined round the nearest point, is asked instead.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

import control
from flyball.control.gains import Gains, StateGains
from flyball.control.models import Arx
from flyball.control.polynomials import closed_loop
from flyball.control.verification.verify import verify

SEED, MODELS = 7_013, 2_200


def random_case(rng: np.random.Generator) -> tuple[Arx, Gains | StateGains]:
    order = int(rng.integers(1, 3))
    roots = rng.uniform(-0.8, 1.02, order)
    plant = Arx(
        tuple(float(x) for x in -np.poly(roots)[1:]),
        tuple(float(x) for x in rng.normal(size=int(rng.integers(1, 3))) * 10.0 ** rng.uniform(-1, 2)),
        int(rng.integers(0, 3)),
    )
    size = max(map(abs, plant.b))
    draw = rng.normal(size=4) * 0.3 / size
    kind = int(rng.integers(4))
    if kind == 3:
        return plant, StateGains(float(draw[0]), (float(draw[1]),), (float(rng.normal() * 0.3),))
    return plant, Gains.of([float(x) for x in draw[: kind + 1] * (1.0, 0.4, 0.3)[: kind + 1]])


def judged_margins(loop: control.TransferFunction) -> tuple[list[float], float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gain, phase, _, _, _, _ = control.stability_margins(loop, returnall=True, method="poly")
        ends = [complex(loop(z)).real for z in (1.0, -1.0) if np.isfinite(loop(z))]
    gains = [float(g) for g in gain] + [-1.0 / value for value in ends if value < 0.0]
    return gains, min((abs(float(p)) for p in phase), default=math.inf)


def judged_peak(loop: control.TransferFunction) -> float:
    omega = np.linspace(0.0, math.pi, 1_001)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            distance = np.nan_to_num(np.abs(1.0 + loop(np.exp(1j * omega))), nan=np.inf)
            nearest, step = omega[int(distance.argmin())], omega[1] - omega[0]
            omega = np.linspace(max(0.0, nearest - step), min(math.pi, nearest + step), 201)
    return float(1.0 / distance.min())


def test_python_control_agrees() -> None:
    rng = np.random.default_rng(SEED)
    stable = compared_gain = compared_phase = 0
    for case in range(MODELS):
        plant, gains = random_case(rng)
        certificate = verify(plant, gains)
        where = f"seed {SEED}, case {case}: {plant}, {gains}"
        loop = closed_loop(plant, gains.polynomials())
        transfer = control.TransferFunction(loop.numerator, loop.denominator, True)
        poles = control.feedback(transfer, 1).poles()
        radius = float(np.abs(poles).max(initial=0.0))
        assert abs(radius - certificate.radius) < 1e-6 * max(1.0, radius) + 1e-4 * (radius < 0.2), where
        if abs(radius - 1.0) < 1e-4:
            continue  # on the border the verdict is a matter of rounding
        assert (certificate.verdict == "unstable") == (radius >= 1.0), where
        if radius >= 1.0:
            continue
        stable += 1
        assert certificate.gain_margin is not None, where
        assert certificate.phase_margin_deg is not None, where
        assert certificate.sensitivity_peak is not None, where
        gain, phase = judged_margins(transfer)
        above = min((g for g in gain if g > 1.0 + 1e-9), default=math.inf)
        if above < 1e4:
            compared_gain += 1
            assert math.isclose(certificate.gain_margin, above, rel_tol=1e-3), where
        if math.isfinite(phase):
            compared_phase += 1
            assert abs(certificate.phase_margin_deg - phase) < 0.05, where
        assert math.isclose(certificate.sensitivity_peak, judged_peak(transfer), rel_tol=1e-3), where
    assert stable > 800
    assert compared_gain > 600
    assert compared_phase > 200
