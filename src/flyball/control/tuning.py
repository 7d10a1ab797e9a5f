"""From an experiment to controllers: the signal that moves the command, and the candidates for the model found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from flyball.control.design.design import ImpossibleSpecification, design
from flyball.control.gains import Gains, Kind, StateGains
from flyball.control.identification.signals import Limits, prbs, staircase
from flyball.control.models import Array, Arx
from flyball.control.verification.verify import Certificate, verify
from flyball.errors import FlyballError, InvalidValue

SignalKind: TypeAlias = Literal["staircase", "prbs"]

LEAST_SAMPLES, MOST_SAMPLES = 12, 3600
_MARGIN = 0.8  # part of the distance to the nearer bound that a pseudo-random signal uses


class Untunable(FlyballError, RuntimeError):
    """The experiment showed too little; the message says why."""


@dataclass(frozen=True)
class Candidate:
    """A controller for the plant found: its config, and the certificate that lets it act (or why not)."""

    name: str
    config: dict[str, Any]
    certificate: Certificate | None
    reason: str
    settling: float | None = None
    """Samples after which a new set point is predicted to be met."""

    @property
    def accepted(self) -> bool:
        return self.certificate is not None and self.certificate.accepted


def check_samples(samples: int) -> None:
    if not LEAST_SAMPLES <= samples <= MOST_SAMPLES:
        raise InvalidValue(f"an experiment takes from {LEAST_SAMPLES} to {MOST_SAMPLES} samples, got {samples}")


def excitation(
    kind: SignalKind, low: float, high: float, *, samples: int, hold: int, centre: float | None = None
) -> tuple[float, ...]:
    """The commands of an experiment, one a sample, each level for `hold` samples.

    A staircase climbs from `low` to `high`; pseudo-random steps (PRBS) go up and down around `centre`, by default
    the middle.

    >>> excitation("staircase", 1.0, 10.0, samples=4, hold=1)
    (1.0, 4.0, 7.0, 10.0)
    """
    limits = Limits(low, high, hold=hold)
    if kind == "staircase":
        steps = max(4, samples // hold)
        levels = [low + (high - low) * step / (steps - 1) for step in range(steps)]
        return tuple(float(value) for value in staircase(levels, limits))
    middle = (low + high) / 2.0 if centre is None else centre
    amplitude = _MARGIN * min(middle - low, high - middle)
    if amplitude <= 0.0:
        raise InvalidValue(f"a PRBS around {middle:g} needs room on both sides within {low:g} to {high:g}")
    return tuple(float(value) for value in prbs(samples, middle, amplitude, limits, seed=1))


def designed(
    name: str,
    kind: Kind,
    model: Arx,
    *,
    settling: float,
    overshoot: float,
    covariance: Array | None = None,
    feed_forward: bool = False,
) -> Candidate:
    """A controller of this kind for the model, or the reason why there is none."""
    try:
        made = design(model, kind, settling=settling, overshoot=overshoot, feed_forward=feed_forward)
    except ImpossibleSpecification as refused:
        return Candidate(name, {}, getattr(refused, "certificate", None), str(refused))
    return verified(name, made.gains, model, covariance)


def verified(name: str, gains: Gains | StateGains, model: Arx, covariance: Array | None = None) -> Candidate:
    """These gains on the model, within what its covariance leaves open."""
    certificate = verify(model, gains, covariance=covariance)
    return Candidate(name, _config(name, gains), certificate, certificate.reason, certificate.settling_step)


def _config(name: str, gains: Gains | StateGains) -> dict[str, Any]:
    if isinstance(gains, StateGains):
        return {"name": name, "ki": gains.ki, "ky": list(gains.ky), "ku": list(gains.ku)}
    config: dict[str, Any] = {"name": name, "kp": gains.kp, "ki": gains.ki}
    if name == "pi_ff":
        config["setpoint_gain"] = gains.feed_forward
    return config
