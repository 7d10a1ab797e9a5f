"""What a design has to meet, which gains to try for it in which order, and when it is met.

Order of goals: (1) the slowest pole decays within the specified settling; (2) robust enough to be accepted; (3)
the response to a step of the set point settles in that time and stays within the specified overshoot; (4) near the
poles of the text book. (3) can be out of reach where (1) and (2) are not: P, PI and PID act on the step of the set
point at once, and a slow or integrating plant then overshoots whatever its poles; multiple poles settle late. The
response to disturbances is as specified all the same, so such gains are a fair answer, reported with the overshoot
and the settling to expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flyball.control.design.nearest import state_gains
from flyball.control.design.placement import pair_of, place_poles, radius_of
from flyball.control.design.search import Demand, GainSearch, Judged, Preference
from flyball.control.gains import AnyGains, Gains, Kind, StateGains
from flyball.control.models import Array, Arx
from flyball.control.verification.verify import Certificate, verify
from flyball.errors import InvalidValue

_OVERSHOOT_SLACK = 0.005


@dataclass(frozen=True)
class Specification:
    """What a design has to meet: poles, or settling in samples with an overshoot as a fraction."""

    poles: tuple[complex, ...] | None = None
    settling: float | None = None
    overshoot: float | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """A plant and the kind of controller to design for it."""

    plant: Arx
    controller: Kind
    derivative_filter: float = 0.0
    feed_forward: float = 0.0
    covariance: Array | None = None
    """Of the model's a and b: gains must then be stable on every model of the confidence region."""
    confidence: float = 0.95

    def check(self, gains: AnyGains) -> Certificate:
        if isinstance(gains, Gains):
            gains = replace(gains, feed_forward=self.feed_forward)
        return verify(self.plant, gains, covariance=self.covariance, confidence=self.confidence)

    def search(self, demand: Demand, preference: Preference, *, polish: bool = False) -> Gains | None:
        search = GainSearch(self.plant, self.controller, self.derivative_filter, self.feed_forward)
        return search.find(demand, preference, polish=polish)

    def search_near(self, gains: Gains, demand: Demand) -> Gains | None:
        search = GainSearch(self.plant, self.controller, self.derivative_filter, self.feed_forward)
        return search.find(demand, search.distance_to(gains), near=gains)


def slack(settling: float) -> float:
    """Tolerance of a settling time: it is counted in whole samples, so half a sample more (at most 8 %) still
    meets it.

    >>> slack(5.0), slack(20.0)
    (0.4, 0.5)
    """
    return min(0.5, 0.08 * settling)


def settles(certificate: Certificate, settling: float) -> bool:
    """Whether the slowest pole has decayed by then."""
    return certificate.settling is not None and certificate.settling <= settling + slack(settling)


def step_is_late(certificate: Certificate, settling: float) -> bool:
    """Whether a step of the set point stays within 2 % only later: a multiple pole, or a zero, can make it so."""
    return certificate.settling_step is None or certificate.settling_step > settling + slack(settling)


def overshoots(certificate: Certificate, overshoot: float) -> bool:
    return certificate.overshoot is None or certificate.overshoot > overshoot + _OVERSHOOT_SLACK


def candidates(task: Task, settling: float, overshoot: float) -> Iterator[AnyGains]:
    """Gains that may meet settling and overshoot, best first; the caller checks each and stops at one that
    does."""
    if task.controller == "state":
        yield from _state_candidates(task.plant, settling, overshoot)
        return
    text_book = None
    if task.controller == "pi":
        try:
            text_book = place_poles(task.plant, "pi", pair_of(settling, overshoot))
        except InvalidValue:  # the plant has a zero there: the search avoids it
            text_book = None
    if isinstance(text_book, Gains):
        yield text_book
    demand = Demand(radius_of(settling), overshoot + _OVERSHOOT_SLACK / 2.0)
    # A step that is late by its poles alone can be in time with others; that search costs the most, so it is last.
    for wanted in (demand, replace(demand, settling=settling + 0.98 * slack(settling))):
        if isinstance(text_book, Gains):
            found = task.search_near(text_book, wanted)
        else:
            # More than one speed meets the specification of a P: the one with the least steady error is best.
            found = task.search(wanted, _error if task.controller == "p" else _sensitivity)
        if found is not None:
            yield found


def second_best(task: Task, settling: float) -> Iterator[AnyGains]:
    """Gains that settle as specified with the least overshoot, then a little slower ones, then fragile ones."""
    if task.controller == "state":
        return  # its candidates are a fixed list, tried already
    slowest = radius_of(settling + 0.98 * slack(settling))
    for radius in (radius_of(settling), slowest):
        found = task.search(Demand(radius, measure_step=True), _overshoot)
        if found is not None:
            yield found
    fragile = task.search(Demand(slowest, robust=False), _sensitivity, polish=True)
    if fragile is not None:
        yield fragile


def _sensitivity(judged: Judged) -> Array:
    return judged.peak


def _error(judged: Judged) -> Array:
    return judged.error


def _overshoot(judged: Judged) -> Array:
    return judged.overshoot


def slowness(judged: Judged) -> Array:
    return judged.radius


def _state_candidates(plant: Arx, settling: float, overshoot: float) -> Iterator[StateGains]:
    """The specified pair, the other poles from deadbeat to as slow; then better damped, faster, a bit slower."""
    quicker = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)  # multiple poles settle later than one of their radius
    for speed in (*(factor * settling for factor in quicker), settling + 0.98 * slack(settling)):
        for damping in (1.0, 0.5, 0.1, 0.0):
            for rest in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
                try:
                    yield state_gains(plant, speed, overshoot * damping, rest)
                except InvalidValue:
                    continue
