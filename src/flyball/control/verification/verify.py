"""Verification: a model and gains in, a certificate out. No gains act before this has judged them.

The loop is linear and known, so everything here is proven, not simulated: the closed-loop poles with the plant's
delay, the Jury test on the characteristic polynomial, exact margins (`margins`), the step response, and stability
over the models that the data allow (`robustness`). The verdict, in this order:

unstable   a pole is not inside the unit circle: refused
fragile    stable, but gain margin < 2 (in either direction), phase margin < 30°, sensitivity peak > 2.5, or
           unstable for a model inside the confidence region: acts only when the user allows it by name
accepted   everything else
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from flyball.control.gains import AnyGains, FilteredGains, Kind
from flyball.control.models import Arx
from flyball.control.polynomials import closed_loop
from flyball.control.verification.jury import Jury, jury
from flyball.control.verification.margins import GAIN_MARGIN, PHASE_MARGIN_DEG, SENSITIVITY_PEAK, Margins, margins
from flyball.control.verification.response import settling_from_radius, step_response
from flyball.control.verification.robustness import Robustness, robustness

Verdict: TypeAlias = Literal["accepted", "fragile", "unstable"]
Method: TypeAlias = Literal["proven", "linearised", "simulated"]


@dataclass(frozen=True)
class Certificate:
    """What is known about a loop before it runs. Margins and predictions of an unstable loop are None.

    settling       samples until the slowest mode has decayed to 2 %: −4/ln(radius)
    settling_step  samples until the response to a step of the set point stays within 2 % (simulated exactly)
    overshoot, steady_state_error  of that response, as fractions of the step
    delay_margin   dead time, in samples, that the loop bears in addition to the model's
    """

    verdict: Verdict
    reason: str
    controller: Kind
    plant: Arx
    gains: AnyGains
    poles: tuple[complex, ...]
    radius: float
    jury: Jury
    gain_margin: float | None
    gain_reduction: float | None
    phase_margin_deg: float | None
    delay_margin: float | None
    sensitivity_peak: float | None
    settling: float | None
    settling_step: int | None
    overshoot: float | None
    steady_state_error: float | None
    robustness: Robustness | None = None
    method: Method = "proven"

    @property
    def accepted(self) -> bool:
        return self.verdict == "accepted"


def verify(
    plant: Arx,
    gains: AnyGains,
    *,
    covariance: npt.ArrayLike | None = None,
    confidence: float = 0.95,
    averages: tuple[float, ...] = (),
    filter_delay: int = 0,
) -> Certificate:
    """Judge gains on a plant; with the `covariance` of a and b, on the models of the confidence region, too.

    `averages` are the poles of averages that the measurement passes first, `filter_delay` is a delay on its way.

    >>> from flyball.control.gains import Gains
    >>> from flyball.control.models import first_order
    >>> verify(first_order(0.26, 59.73), Gains(-0.0016, 0.0060)).verdict
    'accepted'
    >>> print(verify(first_order(0.985, -134.0), Gains(-0.00614, 0.02168)).reason)
    a closed-loop pole lies at 4.03, outside the unit circle
    """
    whole = FilteredGains(gains, averages, filter_delay) if averages or filter_delay else gains
    loop = closed_loop(plant, whole.polynomials())
    poles = np.roots(loop.characteristic).astype(complex)
    radius = float(np.abs(poles).max(initial=0.0))
    test = jury(loop.characteristic.tolist())
    stable = test.stable and radius < 1.0
    region = None if covariance is None else robustness(plant, whole, covariance, confidence)
    found = margins(loop.numerator, loop.denominator) if stable else None
    response = step_response(loop.from_reference, loop.characteristic, radius) if stable else None
    if found is None:
        verdict, reason = _unstable(poles)
    else:
        verdict, reason = _judge(found, region)
    return Certificate(
        verdict=verdict,
        reason=reason,
        controller=gains.kind,
        plant=plant,
        gains=gains,
        poles=tuple(complex(pole) for pole in sorted(poles, key=lambda p: (-abs(p), -p.imag))),
        radius=radius,
        jury=test,
        gain_margin=None if found is None else found.gain,
        gain_reduction=None if found is None else found.gain_reduction,
        phase_margin_deg=None if found is None else found.phase_deg,
        delay_margin=None if found is None else found.delay,
        sensitivity_peak=None if found is None else found.sensitivity_peak,
        settling=settling_from_radius(radius) if stable else None,
        settling_step=None if response is None else response.settling,
        overshoot=None if response is None else response.overshoot,
        steady_state_error=None if response is None else response.steady_state_error,
        robustness=region,
    )


def _unstable(poles: npt.NDArray[np.complex128]) -> tuple[Verdict, str]:
    worst = max(poles, key=lambda pole: (round(abs(pole), 9), pole.imag))
    where = f"{worst.real:.3g}" if abs(worst.imag) < 1e-9 else f"{worst.real:.3g}±{abs(worst.imag):.3g}j"
    if abs(worst) < 1.0 + 1e-6:
        return "unstable", f"a closed-loop pole lies at {where}, on the unit circle: the loop never settles"
    radius = "" if abs(worst.imag) < 1e-9 else f" (radius {abs(worst):.4g})"
    return "unstable", f"a closed-loop pole lies at {where}{radius}, outside the unit circle"


def shortcomings(gain: float, gain_reduction: float, phase_deg: float, peak: float) -> list[str]:
    """What keeps a stable loop from being accepted, in words; nothing when it is."""
    lacking = []
    if gain < GAIN_MARGIN:
        lacking.append(f"the gain margin {gain:.3g} is below {GAIN_MARGIN:g}")
    if gain_reduction * GAIN_MARGIN > 1.0:
        lacking.append(f"it becomes unstable when the gain falls to {gain_reduction:.2g} of its value")
    if phase_deg < PHASE_MARGIN_DEG:
        lacking.append(f"the phase margin {phase_deg:.3g}° is below {PHASE_MARGIN_DEG:g}°")
    if peak > SENSITIVITY_PEAK:
        lacking.append(f"the sensitivity peak {peak:.3g} exceeds {SENSITIVITY_PEAK:g}")
    return lacking


def _judge(found: Margins, region: Robustness | None) -> tuple[Verdict, str]:
    lacking = shortcomings(found.gain, found.gain_reduction, found.phase_deg, found.sensitivity_peak)
    if region is not None and region.stable_fraction < 1.0:
        worst = region.worst_plant
        lacking.append(
            f"it is unstable for {1.0 - region.stable_fraction:.0%} of the models tried in the"
            f" {region.confidence:.0%} confidence region (a={worst.a[0]:.3g}, b={worst.b[0]:.3g})"
        )
    if lacking:
        return "fragile", "stable, but " + " and ".join(lacking)
    phase = "any" if math.isinf(found.phase_deg) else f"{found.phase_deg:.3g}°"
    gain = "any" if math.isinf(found.gain) else f"{found.gain:.3g}"
    return "accepted", (
        f"stable with gain margin {gain}, phase margin {phase} and sensitivity peak {found.sensitivity_peak:.3g}"
    )
