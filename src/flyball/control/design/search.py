"""A small deterministic search for P, PI and PID gains, for where pole placement alone cannot answer.

With a delay a PI has fewer gains than poles, and "settles within 10 samples, overshoots at most 10 %, is
robust" is no set of equations but a region of gains. Thousands of candidates are judged at once as arrays:
first a grid that spans the scales of all gains, then finer and finer lattices round the best points. The
judgement here is a sampled one with some reserve; what the search returns is always put before `verify`, whose
word counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.optimize import minimize

from flyball.control.design.placement import GAINS
from flyball.control.gains import Gains, basis
from flyball.control.models import Array, Arx
from flyball.control.polynomials import radii
from flyball.control.verification.margins import GAIN_MARGIN, PHASE_MARGIN_DEG, SENSITIVITY_PEAK
from flyball.control.verification.response import BAND

_RESERVE = 1.02  # margins are sampled here: ask for a little more than will be judged
# Points an axis, and of a long polynomial fewer: its roots cost the cube of its length.
_GRID = {1: (401,), 2: (37, 33), 3: (19, 17, 13)}
_COARSE_GRID = {1: (161,), 2: (25, 21), 3: (13, 11, 9)}
_LONG = 9
_STARTS, _ROUNDS, _SHRINK = 5, 80, 0.75
_COS, _SIN = math.cos(2.399963), math.sin(2.399963)
_HORIZON, _LONGEST = 240, 1000  # samples simulated of a step


@dataclass(frozen=True, slots=True)
class Judged:
    """A row of figures a candidate, for stable candidates only."""

    scaled: Array  # candidate gains times the size of b: comparable across plants
    radius: Array
    overshoot: Array
    settling: Array  # of a step of the set point, in samples
    error: Array
    peak: Array
    lack: Array  # how much is missing to be accepted, 0 when nothing is


Preference: TypeAlias = Callable[[Judged], Array]
"""What to minimise among candidates that satisfy everything."""


@dataclass(frozen=True)
class Demand:
    """What gains must satisfy: a pole radius, an overshoot, and whether the loop must be robust."""

    radius: float = 1.0
    overshoot: float = math.inf
    robust: bool = True
    measure_step: bool = False  # for a preference that looks at overshoot or settling of a step
    settling: float = math.inf  # of a step, in samples


class GainSearch:
    """Searches the gains of one kind of controller for one plant."""

    def __init__(self, plant: Arx, kind: str, derivative_filter: float = 0.0, feed_forward: float = 0.0) -> None:
        total = sum(plant.b)
        self.size = total if abs(total) > 1e-9 * max(map(abs, plant.b)) else max(plant.b, key=abs)
        self._filter, self._feed_forward = derivative_filter, feed_forward
        self._count = GAINS[kind]
        denominator, terms = basis(kind, derivative_filter)
        own = np.convolve(denominator, plant.denominator())
        pushes = [np.convolve(term, plant.numerator()) / self.size for term in terms]
        length = max(own.size, *(push.size for push in pushes))
        self._own = np.concatenate([np.zeros(length - own.size), own])
        self._pushes = np.array([np.concatenate([np.zeros(length - push.size), push]) for push in pushes])
        ahead = np.convolve(denominator, plant.numerator()) * feed_forward
        self._ahead = np.concatenate([np.zeros(length - ahead.size), ahead])
        frequencies = np.concatenate([np.geomspace(1e-4, 0.05, 40), np.linspace(0.06, math.pi, 110)])
        z = np.exp(1j * frequencies)
        self._loop_basis = np.array([np.polyval(push, z) for push in pushes]) / np.polyval(own, z)

    def find(
        self, demand: Demand, preference: Preference, *, near: Gains | None = None, polish: bool = False
    ) -> Gains | None:
        """The preferred gains that satisfy the demand, or None when the search finds none.

        `near` adds a starting point; `polish` follows kinks to their end, for limits that are to be reported.
        """
        starts, step = self._grid()
        if near is not None:
            starts = np.vstack([starts, self._coordinates(self._scaled(near))])
        scores = self._scores(starts, demand, preference)
        starts_kept, rounds = (3, 50) if self._own.size > _LONG else (_STARTS, _ROUNDS)
        best = np.argsort(scores, kind="stable")[:starts_kept]
        points, values = starts[best], scores[best]
        offsets = np.array(list(itertools.product((-1.0, -0.5, 0.0, 0.5, 1.0), repeat=self._count)))
        if self._count == 3:
            offsets = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=3)))
        scale = np.ones(len(points))
        for _ in range(rounds):
            # Turned a little each time: the best gains often lie at a kink, where a fixed lattice gets stuck.
            offsets = offsets @ self._turn()
            around = points[:, None, :] + scale[:, None, None] * offsets * step
            found = self._scores(around.reshape(-1, self._count), demand, preference).reshape(len(points), -1)
            chosen = found.argmin(axis=1)
            lowest = found[np.arange(len(points)), chosen]
            better = lowest < values
            points = np.where(better[:, None], around[np.arange(len(points)), chosen], points)
            values = np.minimum(values, lowest)
            scale = np.where(better, scale, scale * _SHRINK)
        if polish:
            points = np.array([self._polished(point, demand, preference) for point in points])
            values = self._scores(points, demand, preference)
        winner = int(values.argmin())
        if values[winner] >= _UNSATISFIED:
            return None
        best_point = points[winner]
        gains = self._gains(best_point[None, :])[0] / self.size
        return Gains.of(gains.tolist(), self._filter, self._feed_forward)

    def _polished(self, point: Array, demand: Demand, preference: Preference) -> Array:
        def score(coordinates: Array) -> float:
            return float(self._scores(coordinates[None, :], demand, preference)[0])

        for size in (0.3, 0.1, 0.03):  # a fresh simplex each time: one that collapsed at a kink stays there
            simplex = np.vstack([point, point + size * np.eye(self._count)])
            found = minimize(
                score,
                point,
                method="Nelder-Mead",
                options={"initial_simplex": simplex, "maxiter": 300, "xatol": 1e-6, "fatol": 1e-9},
            )
            point = np.asarray(found.x, dtype=np.float64)
        return point

    def _turn(self) -> Array:
        """A rotation by the golden angle in every plane, which never repeats a direction."""
        turn = np.eye(self._count)
        for i, j in itertools.combinations(range(self._count), 2):
            plane = np.eye(self._count)
            plane[[i, i, j, j], [i, j, i, j]] = [_COS, -_SIN, _SIN, _COS]
            turn = turn @ plane
        return turn

    # Coordinates in which a grid covers gains of every scale: kp and kd (either sign) by sinh, ki (the sign that
    # drives the error to zero) by exp.
    def _grid(self) -> tuple[Array, Array]:
        points = (_COARSE_GRID if self._own.size > _LONG else _GRID)[self._count]
        axes = [np.linspace(-5.0, 5.4, points[0])]
        if self._count > 1:
            axes.append(np.linspace(math.log(1e-5), math.log(4.0), points[1]))
        if self._count > 2:
            axes.append(np.linspace(-4.0, 5.0, points[2]))
        step = np.array([axis[1] - axis[0] for axis in axes])
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self._count), step

    def _gains(self, coordinates: Array) -> Array:
        gains = 0.02 * np.sinh(coordinates)
        if self._count > 1:
            gains[:, 1] = np.exp(np.clip(coordinates[:, 1], -30.0, 3.0))
        return gains

    def _coordinates(self, scaled: Array) -> Array:
        coordinates = np.arcsinh(scaled / 0.02)
        if self._count > 1:
            coordinates[1] = math.log(max(scaled[1], 1e-5))
        return coordinates

    def _scaled(self, gains: Gains) -> Array:
        return np.array([gains.kp, gains.ki, gains.kd][: self._count]) * self.size

    def distance_to(self, gains: Gains) -> Preference:
        target = self._scaled(gains)
        return lambda judged: np.asarray(np.sqrt(((judged.scaled - target) ** 2).sum(axis=1)))

    def _scores(self, coordinates: Array, demand: Demand, preference: Preference) -> Array:
        """Below 1: satisfied, the preference squeezed into [0, 1). Above: by how much it is not."""
        gains = self._gains(coordinates)
        characteristic = self._own + gains @ self._pushes
        usable = np.abs(characteristic[:, 0]) > 1e-9
        radius = np.full(len(gains), np.inf)
        radius[usable] = radii(characteristic[usable])
        scores: Array = 100.0 + np.minimum(radius, 100.0)
        stable = np.flatnonzero(radius < 1.0)
        if not stable.size:
            return scores
        judged = self._judge(gains[stable], characteristic[stable], radius[stable], demand)
        lack = np.maximum(0.0, judged.radius - demand.radius) + np.maximum(
            0.0, judged.overshoot - demand.overshoot
        )
        if math.isfinite(demand.settling):
            lack = lack + np.maximum(0.0, judged.settling / demand.settling - 1.0)
        lack = lack + (judged.lack if demand.robust else 0.0)
        liking = np.maximum(preference(judged), 0.0)
        scores[stable] = np.where(lack > 0.0, _UNSATISFIED + lack, liking / (1.0 + liking))
        return scores

    def _judge(self, gains: Array, characteristic: Array, radius: Array, demand: Demand) -> Judged:
        push = gains @ self._pushes
        loop = gains @ self._loop_basis
        peak = (1.0 / np.abs(1.0 + loop)).max(axis=1)
        lack = np.zeros(len(gains))
        if demand.robust:
            grow, shrink = _gain_margins(loop)
            lack += np.maximum(0.0, GAIN_MARGIN * _RESERVE / grow - 1.0)
            lack += np.maximum(0.0, GAIN_MARGIN * _RESERVE * shrink - 1.0)
            lack += np.maximum(0.0, peak * _RESERVE / SENSITIVITY_PEAK - 1.0)
            wanted = math.radians(PHASE_MARGIN_DEG) * _RESERVE
            lack += np.maximum(0.0, 1.0 - _phase_margin(loop) / wanted)
        reference = push + self._ahead
        final = reference.sum(axis=1) / characteristic.sum(axis=1)
        overshoot, settling = np.zeros(len(gains)), np.zeros(len(gains))
        if demand.measure_step or math.isfinite(demand.overshoot) or math.isfinite(demand.settling):
            overshoot, settling = _step(reference, characteristic, final, _horizon(demand.settling))
        return Judged(gains, radius, overshoot, settling, np.abs(1.0 - final), peak, lack)


_UNSATISFIED = 1.0


def _gain_margins(loop: np.ndarray[tuple[int, ...], np.dtype[np.complex128]]) -> tuple[Array, Array]:
    """Factors on the gain, above and below 1, at which L passes −1, by interpolation; the ends count too."""
    before, after = loop.imag[:, :-1], loop.imag[:, 1:]
    crosses = before * after < 0.0
    weight = np.where(crosses, before / np.where(crosses, before - after, 1.0), 0.0)
    real = np.where(crosses, loop.real[:, :-1] + weight * (loop.real[:, 1:] - loop.real[:, :-1]), 0.0)
    ends = np.where(np.abs(loop[:, [0, -1]].imag) < 1e-2 * np.abs(loop[:, [0, -1]]), loop[:, [0, -1]].real, 0.0)
    real = np.hstack([real, ends])
    factor = np.where(real < 0.0, -1.0 / np.where(real < 0.0, real, -1.0), np.inf)
    grow = np.where(factor > 1.0, factor, np.inf).min(axis=1)
    shrink = np.where(factor <= 1.0, factor, 0.0).max(axis=1)
    return grow, shrink


def _phase_margin(loop: np.ndarray[tuple[int, ...], np.dtype[np.complex128]]) -> Array:
    """Smallest distance from ±180° where |L| passes 1, by interpolation between the sampled frequencies."""
    size = np.log(np.maximum(np.abs(loop), 1e-300))
    before, after = size[:, :-1], size[:, 1:]
    crosses = before * after < 0.0
    weight = np.where(crosses, before / np.where(crosses, before - after, 1.0), 0.0)
    at = loop[:, :-1] + weight * (loop[:, 1:] - loop[:, :-1])
    margin = np.where(crosses, math.pi - np.abs(np.angle(at)), math.pi)
    return np.asarray(margin.min(axis=1), dtype=float)


def _horizon(settling: float) -> int:
    """How many samples to simulate for a step that is to settle by then; beyond the longest, poles decide."""
    return int(min(_LONGEST, max(_HORIZON, 1.5 * settling))) if math.isfinite(settling) else _HORIZON


def _step(reference: Array, characteristic: Array, final: Array, horizon: int) -> tuple[Array, Array]:
    """The highest relative excess of each step response, and from when on it stays within 2 %."""
    order = characteristic.shape[1] - 1
    monic = characteristic[:, 1:] / characteristic[:, :1]
    drive = np.cumsum(reference / characteristic[:, :1], axis=1)
    past = np.zeros((len(reference), order))
    highest, settled = np.zeros(len(reference)), np.zeros(len(reference))
    target = np.where(final == 0.0, 1.0, final)
    for k in range(horizon):
        y = drive[:, min(k, order)] - np.einsum("ij,ij->i", monic, past)
        relative = y / target
        highest = np.maximum(highest, relative)
        settled[np.abs(relative - 1.0) > BAND] = k + 1.0
        past[:, 1:] = past[:, :-1].copy()
        past[:, :1] = y[:, None]
    return np.maximum(0.0, highest - 1.0), settled
