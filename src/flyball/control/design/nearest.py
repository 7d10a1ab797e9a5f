"""The nearest gains that verification accepts, for gains that it does not: what a refusal offers instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from flyball.control.design.placement import pair_of, place_poles
from flyball.control.design.search import Demand, GainSearch
from flyball.control.gains import AnyGains, StateGains
from flyball.control.models import Arx
from flyball.control.polynomials import closed_loop, radii
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue

# Slower and slower state feedback, in samples, and how far the poles beside the pair are pulled in.
_SETTLINGS = tuple(float(x) for x in np.geomspace(2.0, 2000.0, 60))
_REST = (0.0, 0.3, 0.6)
_PACES = (0.9, 0.95, 0.98, 0.995, 1.0)  # pole radii: settled in 38, 78, 198, 798 samples


def suggest(
    plant: Arx, gains: AnyGains, *, covariance: npt.ArrayLike | None = None, confidence: float = 0.95
) -> AnyGains | None:
    """Suggest gains of the same kind that `verify` accepts, as near as the search finds; None where it finds none.

    >>> from flyball.control.gains import Gains
    >>> from flyball.control.models import first_order
    >>> plant = first_order(0.985, -134.0)
    >>> verify(plant, suggest(plant, Gains(-0.00614, 0.02168))).verdict
    'accepted'
    """

    def passes(candidate: AnyGains) -> bool:
        return verify(plant, candidate, covariance=covariance, confidence=confidence).accepted

    if isinstance(gains, StateGains):
        return _slower_state(plant, passes)
    if not any(plant.b):
        return None
    search = GainSearch(plant, gains.kind, gains.derivative_filter, gains.feed_forward)
    # Gains that hardly act always pass; they are no offer. As quick as the loop was, or as quick as can be found.
    own = float(radii(closed_loop(plant, gains.polynomials()).characteristic[None, :])[0])
    paces = [pace for pace in _PACES if not _PACES[0] < own < 1.0 or pace > own]
    found = None
    for pace in paces:
        found = search.find(Demand(pace), search.distance_to(gains), near=gains)
        if found is not None:
            break
    if found is None:
        return None
    # A confidence region may ask for more than the margins do: weaker gains of the same shape then.
    for factor in (1.0, 0.95, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1):
        candidate = replace(found, kp=found.kp * factor, ki=found.ki * factor, kd=found.kd * factor)
        if passes(candidate):
            return candidate
    return None


def _slower_state(plant: Arx, passes: Callable[[AnyGains], bool]) -> StateGains | None:
    """State feedback has no small set of gains to search: the fastest one of the usual shape that passes."""
    for settling in _SETTLINGS:
        for rest in _REST:
            try:
                gains = state_gains(plant, settling, 0.05, rest)
            except InvalidValue:
                return None
            if passes(gains):
                return gains
    return None


def state_gains(plant: Arx, settling: float, overshoot: float, rest: float) -> StateGains:
    """State feedback with a dominant pair of that settling and overshoot, and all other poles at `rest` times its
    radius."""
    pair = pair_of(settling, overshoot)
    others = plant.order + plant.delay + len(plant.b) - 2
    gains = place_poles(plant, "state", [*pair, *[complex(rest * abs(pair[0]))] * others])
    if not isinstance(gains, StateGains):
        raise TypeError("placing poles for state feedback gives StateGains")
    return gains
