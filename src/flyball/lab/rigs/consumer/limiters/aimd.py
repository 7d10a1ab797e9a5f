"""AIMD as a limiter: one more a second, a tenth less when a message takes longer than the time-out."""

from __future__ import annotations

from dataclasses import dataclass

from flyball.control.controllers.common import as_scalar
from flyball.control.limits import clamp
from flyball.control.step import Action, Sample, Value
from flyball.lab.rigs.consumer.limiters.common import HOLD, act, read


@dataclass(frozen=True, slots=True)
class AimdLimit:
    """Source: `AIMDLimit` of concurrency-limits; its clients set the time-out to what they allow a request."""

    timeout_s: float = 5.0
    backoff: float = 0.9
    least: float = 20.0
    most: float = 200.0

    def initial(self, command: Value) -> float:
        return as_scalar(command)

    def step(self, state: float, sample: Sample) -> tuple[float, Action]:
        seen = read(sample, state)
        if seen is None:
            return state, HOLD
        limit = seen.limit
        if seen.residence_s > self.timeout_s:
            limit *= self.backoff
        elif seen.in_use:
            limit += 1.0
        limit = clamp(limit, self.least, self.most)
        return limit, act(limit, seen.limit)
