"""Design: a plant and a wish in, verified gains out.

A wish is a set of closed-loop poles, or settling (samples to 2 %) and overshoot (a fraction). For a settling wish
the poles of a second-order loop are tried first, as every text book does; where they do not fit the plant (delay,
lack of robustness), gains are searched that keep the wish (`wishes` says in which order). What `design` returns,
`verify` accepts; a wish that only a fragile loop fulfils needs `allow_fragile`, and one that no loop fulfils is
refused with the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flyball.control.design.explanations import NAMES, fragile_offer, refusal
from flyball.control.design.placement import place
from flyball.control.design.specification import Task, Wish, candidates, overshoots, second_best, settles
from flyball.control.gains import AnyGains, Kind, StateGains
from flyball.control.models import Arx
from flyball.control.verification.verify import Certificate
from flyball.errors import FlyballError, InvalidValue

DEFAULT_OVERSHOOT = 0.1


class ImpossibleWish(FlyballError, ValueError):
    """No controller of this kind does what was asked; the message says what the limit is."""


class UnstableDesign(ImpossibleWish):
    """The poles asked for can be placed only in a loop that is unstable."""

    def __init__(self, message: str, certificate: Certificate) -> None:
        super().__init__(message)
        self.certificate = certificate


class FragileDesign(ImpossibleWish):
    """Only a fragile loop fulfils the wish, and that was not allowed by name."""

    def __init__(self, message: str, certificate: Certificate) -> None:
        super().__init__(message)
        self.certificate = certificate


@dataclass(frozen=True)
class Design:
    """Gains with the plant and the wish they were made for, and the certificate that lets them act.

    `note` says in words where the wish is kept in its poles but not in the step response; empty otherwise.
    """

    controller: Kind
    gains: AnyGains
    poles: tuple[complex, ...]
    plant: Arx
    wish: Wish
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
) -> Design:
    """Design a controller from `poles`, or from `settling` and `overshoot` (0.1 where not given).

    `feed_forward` adds the static term r/gain of the plant to P, PI or PID: the command that would be right if the
    model were perfect, so that the feedback has only to trim what it misses.

    >>> from flyball.control.models import first_order
    >>> found = design(first_order(0.26, 59.73), "pi", poles=[0.5 + 0.33j, 0.5 - 0.33j])
    >>> found.certificate.verdict, round(found.gains.ki, 5)
    ('accepted', 0.00601)
    """
    if controller not in NAMES:
        raise InvalidValue(f"the controller is one of p, pi, pid, state, got {controller!r}")
    if not any(plant.b):
        raise InvalidValue("the command has no effect on this plant (b = 0): there is nothing to design")
    task = Task(plant, controller, derivative_filter, _feed_forward(plant, controller, feed_forward))
    if poles is not None:
        if settling is not None or overshoot is not None:
            raise InvalidValue("a wish is either poles or settling and overshoot, not both")
        return _by_poles(task, [complex(pole) for pole in poles], allow_fragile)
    if settling is None:
        raise InvalidValue("a wish is needed: poles, or settling in samples with an overshoot such as 0.1")
    limit = DEFAULT_OVERSHOOT if overshoot is None else overshoot
    if not (math.isfinite(settling) and settling > 0.0):
        raise InvalidValue(f"settling is a number of samples above 0, got {settling}")
    if not 0.0 <= limit < 1.0:
        raise InvalidValue(f"overshoot is a fraction from 0 to below 1 (0.1 is 10 %), got {limit}")
    return _by_wish(task, float(settling), float(limit), allow_fragile)


def _feed_forward(plant: Arx, controller: Kind, wanted: bool) -> float:
    if not wanted:
        return 0.0
    if controller == "state":
        raise InvalidValue("feed-forward goes with p, pi or pid; state feedback has no place for it")
    if plant.gain == 0.0:
        raise InvalidValue("feed-forward needs a plant whose steady-state gain is not 0")
    return 1.0 / plant.gain  # 0 for an integrating plant: it rests at any setpoint without a command


def _by_poles(task: Task, poles: list[complex], allow_fragile: bool) -> Design:
    gains = place(task.plant, task.controller, poles, task.derivative_filter)
    certificate = task.check(gains)
    if certificate.accepted or (certificate.verdict == "fragile" and allow_fragile):
        return _done(task, certificate, Wish(poles=tuple(poles)))
    certificate = task.check(gains, suggest=True)
    offer = f"; the nearest gains that pass: {show(certificate.nearest)}" if certificate.nearest else ""
    if certificate.verdict == "unstable":
        raise UnstableDesign(f"these poles give an unstable loop: {certificate.reason}{offer}", certificate)
    raise FragileDesign(
        f"these poles give a fragile loop: {certificate.reason}{offer}; a fragile design must be allowed by name",
        certificate,
    )


def _by_wish(task: Task, settling: float, overshoot: float, allow_fragile: bool) -> Design:
    dead = task.plant.delay + 1
    if settling < dead:
        raise ImpossibleWish(
            f"with delay {task.plant.delay} no controller has any effect in under {dead}"
            f" sample{'s'[: dead > 1]}, so none settles in {settling:g}"
        )
    wish = Wish(settling=settling, overshoot=overshoot)
    # Accepted and within the overshoot: taken at once. Else accepted with the least overshoot, else fragile.
    rest: list[Certificate] = []
    for certificate in map(task.check, candidates(task, settling, overshoot)):
        if certificate.accepted and settles(certificate, settling) and not overshoots(certificate, overshoot):
            return _done(task, certificate, wish)
        rest.append(certificate)
    for certificate in map(task.check, second_best(task, settling)):
        rest.append(certificate)
        if certificate.accepted and settles(certificate, settling):
            break
    rest = [certificate for certificate in rest if settles(certificate, settling)]
    accepted = [certificate for certificate in rest if certificate.accepted]
    if accepted:
        return _done(task, min(accepted, key=_overshoot), wish)
    if not rest:
        raise ImpossibleWish(refusal(task, settling, overshoot))
    fragile = min(rest, key=_peak)
    if allow_fragile:
        return _done(task, fragile, wish)
    raise FragileDesign(
        f"only a fragile {NAMES[task.controller]} settles in {settling:g} samples here ({fragile.reason});"
        f" {fragile_offer(task, settling, overshoot)}",
        fragile,
    )


def _overshoot(certificate: Certificate) -> float:
    return math.inf if certificate.overshoot is None else certificate.overshoot


def _peak(certificate: Certificate) -> float:
    return math.inf if certificate.sensitivity_peak is None else certificate.sensitivity_peak


def _done(task: Task, certificate: Certificate, wish: Wish) -> Design:
    note = ""
    if (
        wish.overshoot is not None
        and certificate.overshoot is not None
        and overshoots(certificate, wish.overshoot)
    ):
        note = (
            f"the poles settle as wished, but a step of the setpoint overshoots by {certificate.overshoot:.0%},"
            f" for {NAMES[task.controller]} acts on it at once; raise the setpoint slowly, or use state feedback"
        )
    return Design(task.controller, certificate.gains, certificate.poles, task.plant, wish, certificate, note)


def show(gains: AnyGains) -> str:
    """Gains in one line, for messages."""
    if isinstance(gains, StateGains):
        lists = {"ky": gains.ky, "ku": gains.ku}
        return f"ki={gains.ki:.4g}, " + ", ".join(
            f"{name}={','.join(f'{value:.4g}' for value in values)}" for name, values in lists.items() if values
        )
    parts = {"kp": gains.kp, "ki": gains.ki, "kd": gains.kd}
    return ", ".join(f"{name}={value:.4g}" for name, value in parts.items() if name == "kp" or value)
