"""The check of a design before it acts: the gains of a controller, verified on the model of its plant."""

from __future__ import annotations

from typing import Any

from flyball.control.controllers.p import P
from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pid import Pid
from flyball.control.controllers.state_feedback import StateFeedback
from flyball.control.design.nearest import suggest
from flyball.control.gains import AnyGains, Gains, StateGains
from flyball.control.models import Arx
from flyball.control.step import Controller
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue


def check_before_acting(name: str, controller: Controller[Any], model: Arx, *, allow_fragile: bool) -> None:
    """Refuse an unstable loop, and a fragile one unless `allow_fragile` permits it."""
    gains = gains_of(controller)
    if gains is None:
        return
    certificate = verify(model, gains)
    if certificate.verdict == "unstable" or (certificate.verdict == "fragile" and not allow_fragile):
        nearest = suggest(model, gains)
        offer = f"; the nearest gains that pass: {nearest}" if nearest else ""
        allow = " (allow_fragile=True lets it act)" if certificate.verdict == "fragile" else ""
        raise InvalidValue(
            f"loop {name!r} with {controller} is {certificate.verdict}: {certificate.reason}{allow}{offer}"
        )


def gains_of(controller: Any) -> AnyGains | None:
    """The gains of the linear controller inside its wrappers; None where verification knows no such controller.

    >>> gains_of(Pi(kp=0.1, ki=0.2)).kind
    'pi'
    """
    while hasattr(controller, "inner"):  # limits and filters
        controller = controller.inner
    if isinstance(controller, P):
        return Gains(controller.kp)
    if isinstance(controller, Pi):
        return Gains(controller.kp, controller.ki)
    if isinstance(controller, Pid):
        return Gains(controller.kp, controller.ki, controller.kd, controller.derivative_filter)
    if isinstance(controller, StateFeedback):
        return StateGains(controller.ki, controller.ky, controller.ku)
    return None
