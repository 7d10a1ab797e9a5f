"""What a loop in the mode `advise` recommends: the identified model, and the gains it would propose. Pure.

A recording of commands and measurements goes in, whoever set the commands. The proposal is the fastest PI that
is accepted by verification on that model; where none is, or the recording shows too little, the text says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flyball.control.design.design import Design, ImpossibleSpecification, design
from flyball.control.identification.identify import Fit, identify
from flyball.control.models import Arx
from flyball.control.record import LoopRecord
from flyball.errors import FlyballError

_SETTLINGS = (4, 6, 8, 12, 16, 24, 32, 48, 64)  # settling in samples, the fastest first
_GOOD_R2 = 0.8  # the prefetch paper's limit of a fit that is good enough to design with


@dataclass(frozen=True)
class Recommendation:
    """`fit` and `proposal` are None where the recording does not support them; `text` says why."""

    text: str
    fit: Fit | None = None
    proposal: Design | None = None

    def __str__(self) -> str:
        return self.text


def recommend(records: Sequence[LoopRecord]) -> Recommendation:
    """Identify and design from the records of one loop, oldest first."""
    commands, measurements = _recording(records)
    try:
        fit = identify(commands, measurements, align="next")
    except FlyballError as error:
        return Recommendation(f"no recommendation yet: {error}")
    model, seen = fit.model, f"{_format(fit.model)}, R² {fit.r2:.2f} over {len(commands)} samples"
    doubts = "".join(f"; {warning}" for warning in fit.warnings)
    if fit.r2 < _GOOD_R2:
        return Recommendation(
            f"{seen}: too poor to design with, change the command more or sample less often{doubts}", fit
        )
    for settling in _SETTLINGS:
        try:
            found = design(model, "pi", settling=settling)
        except ImpossibleSpecification:
            continue
        certificate = found.certificate
        text = (
            f"{seen}; propose {found.gains}, {certificate.verdict}, settles in {certificate.settling:.0f} samples"
        )
        return Recommendation(text + doubts, fit, found)
    return Recommendation(
        f"{seen}; no PI that settles in {_SETTLINGS[-1]} samples is accepted on this model{doubts}", fit
    )


def _recording(records: Sequence[LoopRecord]) -> tuple[list[float], list[float]]:
    """The longest stretch without gaps: u(k) is the command in force from sample k on."""
    best: list[tuple[float, float]] = []
    stretch: list[tuple[float, float]] = []
    for now, after in pairwise(records):
        command, measured = after.applied, now.measurement
        if isinstance(command, float | int) and isinstance(measured, float | int) and not now.missed:
            stretch.append((float(command), float(measured)))
            best = max(best, stretch, key=len)
        else:
            stretch = []
    return [command for command, _ in best], [measured for _, measured in best]


def _format(model: Arx) -> str:
    delayed = "k" if not model.delay else f"k−{model.delay}"
    return f"model y(k+1) = {model.a[0]:.4g}·y(k) + {model.b[0]:.4g}·u({delayed}) + {model.offset:.4g}"
