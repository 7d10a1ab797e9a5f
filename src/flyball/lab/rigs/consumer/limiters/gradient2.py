"""Gradient2: the limit follows the ratio of the long-term to the present residence time."""

from __future__ import annotations

from dataclasses import dataclass

from flyball.control.controllers.common import as_scalar
from flyball.control.filters import ewma
from flyball.control.limits import clamp
from flyball.control.step import Action, Sample, Value
from flyball.lab.rigs.consumer.limiters.common import HOLD, act, read

_WARM_UP = 10  # samples of which the long-term time is the plain mean
_KEEP = 1.0 - 2.0 / 601.0  # of the exponential mean of 600 samples


@dataclass(frozen=True, slots=True)
class Gradient2State:
    limit: float
    long_s: float = 0.0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Gradient2Limit:
    """Source: `Gradient2Limit` of concurrency-limits.

    limit ← 0.8 · limit + 0.2 · (limit · gradient + queue), with gradient = tolerance · long / present within
    0.5 … 1; a long-term time of more than twice the present one is lowered by 5 %.
    """

    tolerance: float = 1.5
    queue: float = 4.0
    smoothing: float = 0.2
    least: float = 20.0
    most: float = 200.0

    def initial(self, command: Value) -> Gradient2State:
        return Gradient2State(as_scalar(command))

    def step(self, state: Gradient2State, sample: Sample) -> tuple[Gradient2State, Action]:
        seen = read(sample, state.limit)
        if seen is None:
            return state, HOLD
        keep = state.samples / (state.samples + 1.0) if state.samples < _WARM_UP else _KEEP
        long_s = ewma(state.long_s, seen.residence_s, keep)
        gradient = clamp(self.tolerance * long_s / seen.residence_s, 0.5, 1.0)
        if long_s > 2.0 * seen.residence_s:
            long_s *= 0.95
        limit = seen.limit
        if seen.in_use:
            limit = ewma(limit, limit * gradient + self.queue, 1.0 - self.smoothing)
        limit = clamp(limit, self.least, self.most)
        return Gradient2State(limit, long_s, state.samples + 1), act(limit, seen.limit)
