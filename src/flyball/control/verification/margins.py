"""How far a stable loop is from instability: gain, phase and delay margins, and the sensitivity peak.

With the loop gain L = N/D, everything of interest on the unit circle z = e^(jω) is a polynomial in x = cos ω::

    |N|² − |D|² = Σ cₖ·cos kω = Σ cₖ·Tₖ(x)                (zero where |L| = 1: phase and delay margins)
    Im(N·D̄)     = Σ sₖ·sin kω = sin ω · Σ sₖ·Uₖ₋₁(x)      (zero where L is real: gain margins)
    1/|1 + L|²  = |D|² / |D + N|²                          (stationary where a polynomial in x is zero)

Tₖ and Uₖ are Chebyshev's polynomials, whose roots in [−1, 1] are found exactly and well conditioned: no frequency
grid to slip through. sin ω = 0 adds the two points that a search between 0 and π misses: z = 1, where a P loop
with a gain of the wrong sign fails, and z = −1, where a sampled first-order loop without delay fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from flyball.control.models import Array

# What a design must have to be accepted.
GAIN_MARGIN = 2.0
PHASE_MARGIN_DEG = 30.0
SENSITIVITY_PEAK = 2.5

# Roots this close to [−1, 1] count as real: a curve that touches its limit is as bad as one that crosses it.
_TOUCH = 1e-7
_MOST_SAMPLES = 30  # of additional delay that are tried one by one


@dataclass(frozen=True, slots=True)
class Margins:
    """Margins of a stable loop.

    gain            the loop gain may grow by less than this factor (infinite: by any)
    gain_reduction  and shrink by more than this factor (0: to nothing); above 0 the loop is conditionally stable
    phase_deg       smallest change of phase, lag or lead, that makes it unstable
    delay           additional dead time it bears, in samples, not necessarily whole
    sensitivity_peak  Ms = max 1/|1 + L|: the most that any disturbance is amplified
    """

    gain: float
    gain_reduction: float
    phase_deg: float
    delay: float
    sensitivity_peak: float


def margins(numerator: Array, denominator: Array) -> Margins:
    """Margins of the loop L = numerator/denominator, which must be stable when closed.

    >>> found = margins(np.array([0.5]), np.array([1.0, -0.5]))  # stable for loop gains below 1.5
    >>> found.gain, found.gain_reduction, round(found.sensitivity_peak, 3)
    (3.0, 0.0, 1.5)
    """
    size = max(numerator.size, denominator.size)
    num, den = _aligned(numerator, size), _aligned(denominator, size)
    grow, shrink = _gain_margins(num, den)
    phase, delay = _phase_and_delay(num, den)
    return Margins(grow, shrink, phase, delay, _sensitivity_peak(num, den))


def _aligned(coefficients: Array, size: int) -> Array:
    return np.concatenate([np.zeros(size - coefficients.size), coefficients])


def _gain_margins(num: Array, den: Array) -> tuple[float, float]:
    """g·L = −1 for a real g > 0 needs L real and negative; the nearest such g on either side of 1 count."""
    products = np.convolve(num, den[::-1])  # of e^(jωm), m = n … −n
    n = num.size - 1
    sines = products[:n][::-1] - products[n + 1 :]  # of sin kω, k = 1 … n
    crossings = np.concatenate([[1.0, -1.0], _roots_in_interval(_second_to_first_kind(sines))])
    _, loop = _on_circle(num, den, np.arccos(crossings))
    with np.errstate(over="ignore"):  # a loop gain next to nothing bears any factor: infinity is right
        factors = -1.0 / loop.real[loop.real < 0.0]
    grow, shrink = factors[factors > 1.0], factors[factors <= 1.0]
    return float(grow.min(initial=math.inf)), float(shrink.max(initial=0.0))


def _phase_and_delay(num: Array, den: Array) -> tuple[float, float]:
    frequencies = np.arccos(_roots_in_interval(_squared_modulus(num) - _squared_modulus(den)))
    frequencies, loop = _on_circle(num, den, frequencies[frequencies > 0.0])
    if not loop.size:
        return math.inf, _delay_margin(num, den, math.inf)
    lag = np.mod(np.angle(loop) + math.pi, 2.0 * math.pi)  # how much more lag brings L to −1
    phase = np.minimum(lag, 2.0 * math.pi - lag)
    return float(np.degrees(phase.min())), _delay_margin(num, den, float((lag / frequencies).min()))


def _delay_margin(num: Array, den: Array, delay: float) -> float:
    """The delay that the crossings allow, or less where |L| > 1 at z = −1.

    Half a sample of delay turns e^(jπ) and e^(−jπ) apart, so that the curve of L is no longer closed there. Inside
    the unit circle that gap is harmless; outside, every whole sample of delay turns L(−1) round and can make the
    loop unstable without a crossing of |L| = 1: then each is tried.
    """
    _, at_end = _on_circle(num, den, np.array([math.pi]))
    if at_end.size and abs(at_end[0]) <= 1.0:
        return delay
    for extra in range(1, int(min(_MOST_SAMPLES, delay)) + 1):
        delayed = np.concatenate([den, np.zeros(extra)])
        delayed[extra:] += num
        if np.abs(np.roots(delayed)).max(initial=0.0) >= 1.0:
            return float(extra)
    return delay


def _sensitivity_peak(num: Array, den: Array) -> float:
    above, below = _squared_modulus(den), _squared_modulus(den + num)
    slope = chebyshev.chebsub(
        chebyshev.chebmul(chebyshev.chebder(above), below), chebyshev.chebmul(above, chebyshev.chebder(below))
    )
    points = np.concatenate([[1.0, -1.0], _roots_in_interval(np.asarray(slope, dtype=float))])
    values = np.exp(1j * np.arccos(points))
    with np.errstate(divide="ignore"):
        peak = np.abs(np.polyval(den, values)) / np.abs(np.polyval(den + num, values))
    return float(peak.max())


def _on_circle(num: Array, den: Array, frequencies: Array) -> tuple[Array, npt.NDArray[np.complex128]]:
    """Frequencies and L there; where L is infinite (an integrator at ω = 0) is no crossing, and left out."""
    z = np.exp(1j * frequencies)
    below = np.polyval(den, z)
    finite = np.abs(below) > 1e-12 * np.abs(den).sum()
    return frequencies[finite], np.asarray(np.polyval(num, z[finite]) / below[finite], dtype=np.complex128)


def _squared_modulus(polynomial: Array) -> Array:
    """Chebyshev coefficients of |p(e^(jω))|² in cos ω: the autocorrelation of p, sides folded together."""
    n = polynomial.size - 1
    series = np.convolve(polynomial, polynomial[::-1])[n:]
    series[1:] *= 2.0
    return series


def _second_to_first_kind(series: Array) -> Array:
    """Σ sₖ·Uₖ as Σ cₖ·Tₖ, by Uₖ = 2·(Tₖ + Tₖ₋₂ + …), the last term T₀ counted once."""
    converted = np.array([2.0 * series[k::2].sum() for k in range(series.size)])
    converted[:1] /= 2.0
    return converted


def _roots_in_interval(series: Array) -> Array:
    largest = float(np.abs(series).max(initial=0.0))
    if largest == 0.0:
        return np.empty(0)
    trimmed = chebyshev.chebtrim(series, 1e-14 * largest)
    roots = np.asarray(chebyshev.chebroots(trimmed), dtype=np.complex128)
    real = roots.real[(np.abs(roots.imag) < _TOUCH) & (np.abs(roots.real) < 1.0 + _TOUCH)]
    return np.clip(real, -1.0, 1.0)
