"""Vegas: the queue is the part of the limit that the shortest residence time does not explain."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flyball.control.controllers.common import as_scalar
from flyball.control.limits import clamp
from flyball.control.step import Action, Sample, Value
from flyball.lab.rigs.consumer.limiters.common import HOLD, act, read

_PROBE = 0.75 * 30.0  # samples per unit of the limit after which the shortest time is measured anew; drawn there


@dataclass(frozen=True, slots=True)
class VegasState:
    limit: float
    shortest_s: float | None = None
    samples: int = 0


@dataclass(frozen=True, slots=True)
class VegasLimit:
    """Source: `VegasLimit` of concurrency-limits, after Brakmo and Peterson's TCP Vegas (1995).

    queue = limit · (1 − shortest / residence): at most log₁₀ limit: grow by 6 log₁₀ limit; below 3 log₁₀ limit:
    by log₁₀ limit; above 6 log₁₀ limit: shrink by log₁₀ limit.
    """

    most: float = 1000.0

    def initial(self, command: Value) -> VegasState:
        return VegasState(as_scalar(command))

    def step(self, state: VegasState, sample: Sample) -> tuple[VegasState, Action]:
        seen = read(sample, state.limit)
        if seen is None:
            return state, HOLD
        limit, samples = seen.limit, state.samples + 1
        if samples >= _PROBE * limit:
            return VegasState(limit, seen.residence_s), act(limit, limit)
        if state.shortest_s is None or seen.residence_s < state.shortest_s:
            return VegasState(limit, seen.residence_s, samples), act(limit, limit)
        step = max(1.0, math.floor(math.log10(max(limit, 1.0))))
        queue = math.ceil(limit * (1.0 - state.shortest_s / seen.residence_s))
        if seen.in_use:
            if queue <= step:
                limit += 6.0 * step
            elif queue < 3.0 * step:
                limit += step
            elif queue > 6.0 * step:
                limit -= step
        limit = clamp(limit, 1.0, self.most)
        return VegasState(limit, state.shortest_s, samples), act(limit, seen.limit)
