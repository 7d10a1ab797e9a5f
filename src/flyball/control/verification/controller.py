"""Verification of a whole controller: with its filters and limits, its feed-forward or its schedule of gains.

A filter on the measurement is part of the loop: an average adds its pole, a median its delay. Limits, dither and
bumpless transfer leave the loop as it is inside the limits. A dead band and a limit of the slew are nonlinear: the
loop is verified without them, and the certificate says `linearised`. Feed-forward changes no pole. Of a schedule
every set of gains is verified, and the switching between them. What is none of these is not verified, and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from flyball.control.controllers.gain_scheduled import GainScheduled
from flyball.control.controllers.p import P
from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pi_ff import PiFf
from flyball.control.controllers.pid import Pid
from flyball.control.controllers.state_feedback import StateFeedback
from flyball.control.gains import Gains, StateGains
from flyball.control.models import Arx
from flyball.control.verification.switching import judge_switching
from flyball.control.verification.verify import Certificate, Verdict, verify
from flyball.control.wrappers.bumpless import Bumpless
from flyball.control.wrappers.dead_band import DeadBand
from flyball.control.wrappers.dither import Dither
from flyball.control.wrappers.filtered import Ewma, Median
from flyball.control.wrappers.saturation import Saturation
from flyball.control.wrappers.slew import Slew


@dataclass(frozen=True)
class Verification:
    """What verification found: a verdict with its certificates, worst first, or None: not verified."""

    verdict: Verdict | None
    reason: str
    certificates: tuple[Certificate, ...] = ()

    def __str__(self) -> str:
        return f"{self.verdict or 'not verified'}: {self.reason}"


NO_MODEL = Verification(None, "there is no model of the plant")


def verify_controller(
    plant: Arx, controller: Any, *, covariance: npt.ArrayLike | None = None, confidence: float = 0.95
) -> Verification:
    """Verify a controller with all that is wrapped around it.

    >>> from flyball.control.models import first_order
    >>> str(verify_controller(first_order(0.985, -134.0), Pi(kp=-0.00614, ki=0.02168)))
    'unstable: a closed-loop pole lies at 4.03, outside the unit circle'
    """
    averages: list[float] = []
    delay, linearised = 0, False
    while hasattr(controller, "inner"):
        if isinstance(controller, Ewma):
            averages.append(controller.keep)
        elif isinstance(controller, Median):
            delay += math.ceil((controller.size - 1) / 2)
            linearised = linearised or controller.size > 1
        elif isinstance(controller, Slew | DeadBand):
            linearised = True
        elif not isinstance(controller, Saturation | Dither | Bumpless):
            return Verification(None, f"verification knows no wrapper {type(controller).__name__}")
        controller = controller.inner
    schedule = gains_of(controller)
    if not schedule:
        return Verification(None, f"verification knows no linear form of {type(controller).__name__}")
    poles = tuple(keep for keep in averages if keep)
    certificates = []
    for gains in schedule:
        certificate = verify(
            plant, gains, covariance=covariance, confidence=confidence, averages=poles, filter_delay=delay
        )
        certificates.append(replace(certificate, method="linearised") if linearised else certificate)
    order: tuple[Verdict, ...] = ("unstable", "fragile", "accepted")
    certificates.sort(key=lambda certificate: order.index(certificate.verdict))
    worst = certificates[0]
    reason = worst.reason if len(schedule) == 1 else f"of {len(schedule)} sets of gains the worst: {worst.reason}"
    if linearised:
        reason += " (linearised)"
    if worst.verdict == "unstable" or len(set(schedule)) == 1:
        return Verification(worst.verdict, reason, tuple(certificates))
    return _with_switching(
        plant, schedule, worst.verdict, reason, tuple(certificates), filtered=bool(poles or delay)
    )


def _with_switching(
    plant: Arx,
    schedule: tuple[Gains | StateGains, ...],
    verdict: Verdict,
    reason: str,
    certificates: tuple[Certificate, ...],
    *,
    filtered: bool,
) -> Verification:
    sets = [gains for gains in schedule if isinstance(gains, Gains)]
    if filtered or any(gains.derivative_filter for gains in sets):
        return Verification("fragile", f"{reason}; switching is not verified with filters", certificates)
    match judge_switching(plant, sets):
        case "stable":
            return Verification(verdict, f"{reason}; stable in every order of switching", certificates)
        case "unstable":
            return Verification("unstable", "switching between the sets of gains can be unstable", certificates)
        case "unproven":
            return Verification("fragile", f"{reason}; fast switching is not proven stable", certificates)


def gains_of(controller: Any) -> tuple[Gains | StateGains, ...]:
    """The sets of gains of a linear controller, one unless they are scheduled; () where there is no linear form.

    >>> gains_of(Pi(kp=0.1, ki=0.2))[0].kind
    'pi'
    """
    if isinstance(controller, P):
        return (Gains(controller.kp),)
    if isinstance(controller, Pi):
        return (Gains(controller.kp, controller.ki),)
    if isinstance(controller, PiFf):
        return (Gains(controller.kp, controller.ki, feed_forward=controller.setpoint_gain),)
    if isinstance(controller, Pid):
        return (Gains(controller.kp, controller.ki, controller.kd, controller.derivative_filter),)
    if isinstance(controller, StateFeedback):
        return (StateGains(controller.ki, controller.ky, controller.ku),)
    if isinstance(controller, GainScheduled):
        f = controller.derivative_filter
        return tuple(
            Gains(region.kp, region.ki, region.kd, f if region.kd else 0.0) for region in controller.regions
        )
    return ()
