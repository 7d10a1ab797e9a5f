"""The check of a design before it acts: a controller, verified on the model of its plant."""

from __future__ import annotations

from typing import Any

from flyball.control.design.nearest import suggest
from flyball.control.models import Arx
from flyball.control.step import Controller
from flyball.control.verification.controller import Verification, verify_controller
from flyball.errors import InvalidValue


def check_before_acting(
    name: str, controller: Controller[Any], model: Arx, *, allow_fragile: bool
) -> Verification:
    """Refuse an unstable loop, and a fragile one unless `allow_fragile` permits it."""
    found = verify_controller(model, controller)
    if found.verdict == "unstable" or (found.verdict == "fragile" and not allow_fragile):
        # The search for other gains knows neither filters nor schedules.
        alone = len(found.certificates) == 1 and not hasattr(controller, "inner")
        nearest = suggest(model, found.certificates[0].gains) if alone else None
        offer = f"; the nearest gains that pass: {nearest}" if nearest else ""
        allow = " (allow_fragile=True lets it act)" if found.verdict == "fragile" else ""
        raise InvalidValue(f"loop {name!r} with {controller} is {found.verdict}: {found.reason}{allow}{offer}")
    return found
