"""Design: a plant and a specification in, verified gains out.

A specification is a set of closed-loop poles, or settling (samples to 2 %) and overshoot (a fraction). For a
settling time the poles of a second-order loop are tried first, as every text book does; where they do not fit the
plant (delay, lack of robustness), gains that meet the specification are searched for (`specification` has the
order). What `design` returns, `verify` accepts; a specification that only a fragile loop meets needs
`allow_fragile`, and one that no loop meets is refused with the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flyball.control.design.explanations import NAMES, fragile_offer, refusal
from flyball.control.design.nearest import suggest
from flyball.control.design.placement import place_poles
from flyball.control.design.specification import (
    Specification,
    Task,
    candidates,
    overshoots,
    second_best,
    settles,
    step_is_late,
)
from flyball.control.gains import AnyGains, Kind, StateGains
from flyball.control.models import Arx
from flyball.control.verification.verify import Certificate
from flyball.errors import FlyballError, InvalidValue

DEFAULT_OVERSHOOT = 0.1


class ImpossibleSpecification(FlyballError, ValueError):
    """No controller of this kind meets the specification; the message gives the limit."""


class UnstableDesign(ImpossibleSpecification):
    """The specified poles give an unstable loop."""

    def __init__(self, message: str, certificate: Certificate, nearest: AnyGains | None = None) -> None:
        super().__init__(message)
        self.certificate = certificate
        self.nearest = nearest
        """The nearest gains that are accepted, where they were searched for and found."""


class FragileDesign(ImpossibleSpecification):
    """Only a fragile loop meets the specification, and `allow_fragile` was not set."""

    def __init__(self, message: str, certificate: Certificate, nearest: AnyGains | None = None) -> None:
        super().__init__(message)
        self.certificate = certificate
        self.nearest = nearest
        """The nearest gains that are accepted, where they were searched for and found."""


@dataclass(frozen=True)
class Design:
    """Gains with the plant and the specification they were made for, and the certificate that lets them act.

    `note` is a sentence for people where the poles meet the specification but the step response does not.
    """

    controller: Kind
    gains: AnyGains
    poles: tuple[complex, ...]
    plant: Arx
    specification: Specification
    certificate: Certificate
    note: str = ""


def design(
    plant: Arx,
    controller: Kind,
    *,
    poles: Sequence[complex] | None = None,
    settling: float | None = None,
    overshoot: float | None = None,
    feed_forward: bool = False,
    derivative_filter: float = 0.0,
    allow_fragile: bool = False,
    covariance: npt.ArrayLike | None = None,
    confidence: float = 0.95,
) -> Design:
    """Design a controller from `poles`, or from `settling` and `overshoot` (default 0.1).

    With the `covariance` of the model's a and b, it is to be stable on every model of the confidence region.

    `feed_forward` adds the static term r/gain of the plant to P, PI or PID: the command that would be right if the
    model were perfect, so that the feedback has only to trim what it misses.

    >>> from flyball.control.models import first_order
    >>> found = design(first_order(0.26, 59.73), "pi", poles=[0.5 + 0.33j, 0.5 - 0.33j])
    >>> found.certificate.verdict, round(found.gains.ki, 5)
    ('accepted', 0.00601)
    """
    if controller not in NAMES:
        raise InvalidValue(f"controller must be p, pi, pid or state, got {controller!r}")
    if not any(plant.b):
        raise InvalidValue("the command has no effect on this plant (b = 0): there is nothing to design")
    task = Task(
        plant,
        controller,
        derivative_filter,
        _feed_forward(plant, controller, feed_forward),
        None if covariance is None else np.asarray(covariance, dtype=float),
        confidence,
    )
    if poles is not None:
        if settling is not None or overshoot is not None:
            raise InvalidValue("a specification has either poles or settling and overshoot, got both")
        return _by_poles(task, [complex(pole) for pole in poles], allow_fragile)
    if settling is None:
        raise InvalidValue("a specification needs poles, or settling in samples with an overshoot such as 0.1")
    limit = DEFAULT_OVERSHOOT if overshoot is None else overshoot
    if not (math.isfinite(settling) and settling > 0.0):
        raise InvalidValue(f"settling must be a number of samples > 0, got {settling}")
    if not 0.0 <= limit < 1.0:
        raise InvalidValue(f"overshoot must be a fraction >= 0 and < 1 (0.1 is 10 %), got {limit}")
    return _by_settling(task, float(settling), float(limit), allow_fragile)


def _feed_forward(plant: Arx, controller: Kind, wanted: bool) -> float:
    if not wanted:
        return 0.0
    if controller == "state":
        raise InvalidValue("feed_forward needs the controller p, pi or pid, got state")
    if plant.gain == 0.0:
        raise InvalidValue("feed_forward needs a plant whose steady-state gain is not 0")
    return 1.0 / plant.gain  # 0 for an integrating plant: it rests at any set point without a command


def _by_poles(task: Task, poles: list[complex], allow_fragile: bool) -> Design:
    gains = place_poles(task.plant, task.controller, poles, task.derivative_filter)
    certificate = task.check(gains)
    if certificate.accepted or (certificate.verdict == "fragile" and allow_fragile):
        return _result(task, certificate, Specification(poles=tuple(poles)))
    nearest = suggest(task.plant, certificate.gains, covariance=task.covariance, confidence=task.confidence)
    offer = f"; the nearest gains that pass: {show(nearest)}" if nearest else ""
    if certificate.verdict == "unstable":
        raise UnstableDesign(
            f"these poles give an unstable loop: {certificate.reason}{offer}", certificate, nearest
        )
    raise FragileDesign(
        f"these poles give a fragile loop: {certificate.reason}{offer}; allow_fragile permits it",
        certificate,
        nearest,
    )


def _by_settling(task: Task, settling: float, overshoot: float, allow_fragile: bool) -> Design:
    dead = task.plant.delay + 1
    if settling < dead:
        raise ImpossibleSpecification(
            f"with delay {task.plant.delay} no controller has any effect in under {dead}"
            f" sample{'s'[: dead > 1]}, so none settles in {settling:g}"
        )
    specification = Specification(settling=settling, overshoot=overshoot)
    # The first that is accepted, within the overshoot, and whose step settles in time wins; else the accepted one
    # within the overshoot whose step is earliest, or with the least overshoot; else a fragile one.
    rest: list[Certificate] = []
    for certificate in map(task.check, candidates(task, settling, overshoot)):
        good = certificate.accepted and settles(certificate, settling) and not overshoots(certificate, overshoot)
        if good and not step_is_late(certificate, settling):
            return _result(task, certificate, specification)
        rest.append(certificate)
    for certificate in map(task.check, second_best(task, settling)):
        rest.append(certificate)
        if certificate.accepted and settles(certificate, settling):
            break
    rest = [certificate for certificate in rest if settles(certificate, settling)]
    accepted = [certificate for certificate in rest if certificate.accepted]
    if accepted:
        within = [one for one in accepted if not overshoots(one, overshoot)]
        best = min(within, key=_step) if within else min(accepted, key=_overshoot)
        return _result(task, best, specification)
    if not rest:
        raise ImpossibleSpecification(refusal(task, settling, overshoot))
    fragile = min(rest, key=_peak)
    if allow_fragile:
        return _result(task, fragile, specification)
    raise FragileDesign(
        f"only a fragile {NAMES[task.controller]} settles in {settling:g} samples here ({fragile.reason});"
        f" {fragile_offer(task, settling, overshoot)}",
        fragile,
    )


def _overshoot(certificate: Certificate) -> float:
    return math.inf if certificate.overshoot is None else certificate.overshoot


def _step(certificate: Certificate) -> float:
    return math.inf if certificate.settling_step is None else certificate.settling_step


def _peak(certificate: Certificate) -> float:
    return math.inf if certificate.sensitivity_peak is None else certificate.sensitivity_peak


def _result(task: Task, certificate: Certificate, specification: Specification) -> Design:
    note = ""
    if (
        specification.overshoot is not None
        and certificate.overshoot is not None
        and overshoots(certificate, specification.overshoot)
    ):
        note = (
            "the poles settle as specified, but a step of the set point overshoots by "
            f"{certificate.overshoot:.0%}, for {NAMES[task.controller]} acts on it at once; "
            "raise the set point slowly, or use state feedback"
        )
    if specification.settling is not None and step_is_late(certificate, specification.settling):
        late = "later than simulated" if certificate.settling_step is None else f"in {certificate.settling_step}"
        lateness = (
            f"the poles settle in {specification.settling:g} samples, but a step of the set point settles {late}: "
            "nothing was found that is robust and quicker; specify a longer settling"
        )
        note = f"{note}; {lateness}" if note else lateness
    return Design(
        task.controller, certificate.gains, certificate.poles, task.plant, specification, certificate, note
    )


def show(gains: AnyGains) -> str:
    """Gains in one line, for messages."""
    if isinstance(gains, StateGains):
        lists = {"ky": gains.ky, "ku": gains.ku}
        return f"ki={gains.ki:.4g}, " + ", ".join(
            f"{name}={','.join(f'{value:.4g}' for value in values)}" for name, values in lists.items() if values
        )
    parts = {"kp": gains.kp, "ki": gains.ki, "kd": gains.kd}
    return ", ".join(f"{name}={value:.4g}" for name, value in parts.items() if name == "kp" or value)
