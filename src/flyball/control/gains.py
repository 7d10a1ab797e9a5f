"""The gains of a linear controller, and the polynomials that they mean.

Design computes gains, verification judges them, controllers run them; this module alone defines what a set of
gains means. A controller is written as two polynomials over a common denominator::

    u = reference(z)/denominator(z) · r  −  feedback(z)/denominator(z) · y

P, PI and PID act on the error e = r − y, so both numerators are the same (but for a feed-forward term)::

    u(k) = Kp·e(k) + Ki·Σe (the sum includes e(k)) + d(k) + Kff·r(k)
    d(k) = f·d(k−1) + (1 − f)·Kd·(e(k) − e(k−1))             f = 0: unfiltered

State feedback with a predictor acts on the measured outputs and on the commands still under way::

    u(k) = Ki·Σe − Σᵢ kyᵢ·y(k−i) − Σⱼ kuⱼ·u(k−j)             i from 0, j from 1

The terms in u(k−1) … u(k−D) are what a predictor of y(k+D) would need to know: the effect of commands that were
sent but have no visible effect yet. The sum of errors leaves no steady error whatever the offset or the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from flyball.control.models import Array
from flyball.errors import InvalidValue

Kind: TypeAlias = Literal["p", "pi", "pid", "state"]


@dataclass(frozen=True, eq=False)
class ControllerPolynomials:
    """A linear controller as polynomials in z, highest power first, all of the same length."""

    denominator: Array
    feedback: Array
    reference: Array


@dataclass(frozen=True, slots=True)
class Gains:
    """Gains of P (ki = kd = 0), PI (kd = 0) and PID; `derivative_filter` is f above, from 0 to below 1.

    >>> Gains(-0.0016, 0.0060).kind
    'pi'
    >>> Gains(-0.0016, 0.0060).polynomials().feedback.round(4).tolist()  # (Kp + Ki)·z − Kp over z − 1
    [0.0044, 0.0016]
    """

    kp: float
    ki: float = 0.0
    kd: float = 0.0
    derivative_filter: float = 0.0
    feed_forward: float = 0.0

    def __post_init__(self) -> None:
        for name in ("kp", "ki", "kd", "feed_forward"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise InvalidValue(f"the gain {name} must be a finite number, got {value}")
        if not 0.0 <= self.derivative_filter < 1.0:
            raise InvalidValue(
                f"derivative_filter must be a pole >= 0 (no filter) and < 1, got {self.derivative_filter}"
            )

    @property
    def kind(self) -> Kind:
        if self.kd:
            return "pid"
        return "pi" if self.ki else "p"

    def scale(self, factor: float) -> Gains:
        return Gains(
            self.kp * factor, self.ki * factor, self.kd * factor, self.derivative_filter, self.feed_forward
        )

    @staticmethod
    def of(values: Sequence[float], derivative_filter: float = 0.0, feed_forward: float = 0.0) -> Gains:
        """Gains from one (P), two (PI) or three (PID) numbers."""
        kp, ki, kd = (*map(float, values), 0.0, 0.0)[:3]
        return Gains(kp, ki, kd, derivative_filter, feed_forward)

    def polynomials(self) -> ControllerPolynomials:
        """The controller as polynomials. A term whose gain is zero adds no pole: a PI with Ki = 0 is a P."""
        denominator, terms = basis(self.kind, self.derivative_filter)
        values = {"p": (self.kp,), "pi": (self.kp, self.ki), "pid": (self.kp, self.ki, self.kd)}[self.kind]
        feedback = np.asarray(values) @ terms
        return ControllerPolynomials(denominator, feedback, feedback + self.feed_forward * denominator)


def basis(kind: str, derivative_filter: float = 0.0) -> tuple[Array, Array]:
    """The common denominator of P, PI or PID, and one numerator a gain (a row each).

    With f the pole of the D filter: 1 for P; z − 1 for PI; (z − f)(z − 1) for PID, where the D part is
    (1 − f)·(z − 1)/(z − f), that is (z − 1)/z without a filter.

    >>> basis("pid")[1].tolist()
    [[1.0, -1.0, 0.0], [1.0, -0.0, 0.0], [1.0, -2.0, 1.0]]
    """
    if kind == "p":
        return np.array([1.0]), np.array([[1.0]])
    if kind == "pi":
        return np.array([1.0, -1.0]), np.array([[1.0, -1.0], [1.0, 0.0]])
    f = derivative_filter
    denominator = np.array([1.0, -1.0 - f, f])
    return denominator, np.array([denominator, [1.0, -f, 0.0], (1.0 - f) * np.array([1.0, -2.0, 1.0])])


@dataclass(frozen=True, slots=True)
class StateGains:
    """State feedback on y(k), y(k−1), … and on the commands under way u(k−1), u(k−2), …, with integral action.

    The denominator is (1 + Σ kuⱼ·z⁻ʲ)·(1 − 1/z), times a power of z:

    >>> StateGains(ki=0.5, ky=(0.2,), ku=(0.3,)).polynomials().denominator.round(2).tolist()
    [1.0, -0.7, -0.3]
    """

    ki: float
    ky: tuple[float, ...]
    ku: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.ky:
            raise InvalidValue("ky must have at least one gain, got ()")
        if not all(math.isfinite(gain) for gain in (self.ki, *self.ky, *self.ku)):
            raise InvalidValue(f"the gains must be finite, got ki={self.ki}, ky={self.ky}, ku={self.ku}")

    @property
    def kind(self) -> Kind:
        return "state"

    def polynomials(self) -> ControllerPolynomials:
        difference = np.array([1.0, -1.0])  # 1 − 1/z
        denominator = np.convolve(np.array([1.0, *self.ku]), difference)
        on_outputs = np.convolve(np.asarray(self.ky, dtype=float), difference)
        length = max(denominator.size, on_outputs.size)
        feedback = _pad(on_outputs, length)
        feedback[0] += self.ki
        reference = np.zeros(length)
        reference[0] = self.ki
        return ControllerPolynomials(_pad(denominator, length), feedback, reference)


def _pad(coefficients: Array, length: int) -> Array:
    """The same polynomial in 1/z, multiplied by z^(length − 1)."""
    return np.concatenate([coefficients, np.zeros(length - coefficients.size)])


@dataclass(frozen=True, slots=True)
class FilteredGains:
    """Gains behind filters on the measurement: the poles of exponential averages, and a delay in samples.

    An average multiplies the feedback by (1 − f)·z/(z − f), a delay of d samples by z^(−d); the set point is not
    filtered.

    >>> FilteredGains(Gains(0.5), averages=(0.9,)).polynomials().feedback.round(3).tolist()
    [0.05, 0.0]
    """

    inner: Gains | StateGains
    averages: tuple[float, ...] = ()
    delay: int = 0

    @property
    def kind(self) -> Kind:
        return self.inner.kind

    def polynomials(self) -> ControllerPolynomials:
        denominator, feedback, reference = (
            getattr(self.inner.polynomials(), name) for name in ("denominator", "feedback", "reference")
        )
        own = np.concatenate([np.atleast_1d(np.poly(self.averages)), np.zeros(self.delay)])
        passed = np.zeros(len(self.averages) + 1)
        passed[0] = math.prod(1.0 - pole for pole in self.averages)
        return ControllerPolynomials(
            np.convolve(denominator, own), np.convolve(feedback, passed), np.convolve(reference, own)
        )


AnyGains: TypeAlias = Gains | StateGains


@dataclass(frozen=True, eq=False)
class MatrixGains:
    """State feedback with several commands: u(k) = −K·x(k) + Ki·Σe; without integral action Ki has no columns."""

    K: Array
    Ki: Array
