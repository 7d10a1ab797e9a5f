"""What the limiters read from a sample."""

from __future__ import annotations

from typing import NamedTuple

from flyball.consumer.policy.goals import disturbances_of
from flyball.control.controllers.common import applied_or, scalar_error
from flyball.control.step import Action, ReasonCode, Sample, hold

HOLD = hold("no message was handled since the last sample: held", ReasonCode.HELD_NO_ESTIMATE)


class Round(NamedTuple):
    """The mean residence time of a sample, the limit in force, and whether at least half of it was in use."""

    residence_s: float
    limit: float
    in_use: bool


def read(sample: Sample, limit: float) -> Round | None:
    """Read a sample; None: no message was handled, or nothing was measured."""
    measured = disturbances_of(sample)
    residence_s, rate = measured.residence_s, measured.rate_per_s
    if scalar_error(sample) is None or residence_s is None or rate is None or residence_s <= 0.0:
        return None
    in_force = applied_or(sample, limit)
    return Round(residence_s, in_force, measured.is_full or 2.0 * rate * residence_s >= in_force)


def act(limit: float, before: float) -> Action:
    code = ReasonCode.UNCHANGED if limit == before else ReasonCode.RAISED if limit > before else ReasonCode.LOWERED
    return Action(limit, code=code)
