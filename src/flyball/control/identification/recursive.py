"""Least squares one sample at a time, for a plant that changes while it is controlled.

The model is y(k+1) = a·y(k) + b·u(k−D) + c. With θ = (a, b, c) and φ = (y(k), u(k−D), 1) each sample adds its
information φφᵀ to the matrix R and moves the estimate by R⁻¹φ times the prediction error. Three dangers of doing
this for weeks inside a loop, and what is done about each:

Wind-up. Forgetting everything at a constant rate empties R while the plant is quiet, and then the first noise
throws the estimate anywhere. Here only what a sample renews is forgotten (directional forgetting): before it, φᵀθ
was known with information 1/(φᵀR⁻¹φ); the share 1−λ of that is subtracted from R along φ, then the sample is
added: R ← R − (1−λ)/(φᵀR⁻¹φ)·φφᵀ + φφᵀ. Information along a φ that repeats tends to 1/(1−λ), all other directions
keep what they know; and since φᵀR⁻¹φ has no units, strong and weak directions are forgotten at the same rate.

Feedback. In a closed loop the command answers the noise, and least squares on such data finds the controller's
inverse as readily as the plant. Samples are therefore used only while the command moves on purpose: while its
recent movement, through the gain b, is at least `excitation` times the noise. A set-point change or a bounded
probing signal does that; a controller at rest does not.

Drift. A plant that changes while nothing is learnt, or faster than forgetting follows, shows in the prediction
errors. Three cumulative sums of log-likelihood ratios watch the normalised errors z: for a mean of +2, of −2, and
for twice the deviation (a mean nearer to 0 is what an estimate's own error gives in a quiet time). Each grows by
ln(p₁(z)/p₀(z)) and is cut at 0; since E[p₁/p₀] = 1 without drift, a threshold of ln(N) gives false alarms less
often than once in N samples. An alarm makes the estimate learn fast again.

Everything is plain floats: three parameters are too few for array arithmetic to pay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from flyball.control.identification.symmetric3 import Factors, Symmetric, factor, quadratic, solve
from flyball.control.models import Array, Arx, first_order
from flyball.errors import InvalidValue

_NO_INFORMATION = 1e-9  # per parameter, at the start: far below that of one sample in any sensible unit
_CERTAIN = 1e30  # of a parameter that is known
_BEYOND = 1e40  # no sensor means this; its square must not overflow. NaN is refused too
_CLIP = 6.0  # one wild sample must not raise the alarm by itself, nor the noise estimate for long
_KEPT_AFTER_DRIFT = 0.1  # share of the old information that survives an alarm


@dataclass(frozen=True, slots=True)
class RlsState:
    """All that is remembered: floats and tuples, to be stored and restored as they are."""

    theta: tuple[float, float, float]
    information: Symmetric
    last: float | None
    """The previous measurement; None where it was missing."""
    commands: tuple[float | None, ...]
    """The last D commands, newest first."""
    command_mean: float | None = None
    command_variance: float = 0.0
    noise_variance: float = 0.0
    residuals: int = 0
    """How many prediction errors the noise variance rests on."""
    updates: int = 0
    """How many samples were learnt from."""
    rising: float = 0.0
    falling: float = 0.0
    louder: float = 0.0
    drifts: int = 0
    """Alarms so far; compare before and after an update to notice one."""
    learnt_since_drift: int = 0
    from_model: bool = field(default=False, metadata={"stored_as": "given"})
    """Whether the estimate began as a model rather than as nothing."""


@dataclass(frozen=True, slots=True)
class Rls:
    """Recursive least squares: a configuration; what it learns is in the state.

    >>> rls = Rls()
    >>> state = rls.initial()
    >>> y, u = 0.0, 0.0
    >>> for k in range(40):
    ...     state = rls.update(state, y, u)
    ...     u = 4.0 + (k * 7 % 5)  # the command now applied …
    ...     y = 0.5 * y + 3.0 * u + 1.0  # … and what it makes of the plant
    >>> model = rls.model(state)
    >>> round(model.a[0], 3), round(model.b[0], 3), round(model.offset, 3)
    (0.5, 3.0, 1.0)
    """

    delay: int = 0
    offset: bool = True
    pole: float | None = None
    """a, where it is known: then only b (and c) are learnt."""
    forgetting: float = 0.98
    """λ: what a sample renews fades by this factor; memory is about 1/(1−λ) samples for each parameter."""
    excitation: float = 1.0
    """How large the command's recent movement (deviation times gain) must be, in deviations of the noise."""
    min_movement: float = 0.0
    """Deviation of the command below which nothing is learnt; for example the actuator's resolution."""
    window: int = 20
    """Over how many samples the command's movement is measured."""
    noise_memory: int = 1000
    """Over how many samples the noise is averaged."""
    false_alarm_samples: float = 1e6
    """Mean number of samples between false drift alarms (at least)."""
    warm_up: int = 50
    """Samples to learn from before drift alarms are raised, at first and after an alarm."""

    def __post_init__(self) -> None:
        for name, value, valid, wanted in (
            ("delay", self.delay, self.delay >= 0, "a number of samples >= 0"),
            ("pole", self.pole, self.pole is None or -1.0 < self.pole < 1.0, "between -1 and 1"),
            ("forgetting", self.forgetting, 0.0 < self.forgetting <= 1.0, "> 0 and <= 1"),
            ("excitation", self.excitation, 0.0 <= self.excitation < math.inf, ">= 0"),
            ("min_movement", self.min_movement, 0.0 <= self.min_movement < math.inf, ">= 0"),
            ("window", self.window, self.window >= 2, "a number of samples >= 2"),
            ("noise_memory", self.noise_memory, self.noise_memory >= 10, "a number of samples >= 10"),
            ("false_alarm_samples", self.false_alarm_samples, self.false_alarm_samples >= 100.0, ">= 100"),
            ("warm_up", self.warm_up, self.warm_up >= 10, "a number of samples >= 10"),
        ):
            if not valid:
                raise InvalidValue(f"{name} of recursive least squares must be {wanted}, got {value}")

    @property
    def parameters(self) -> int:
        return 2 + int(self.offset)

    def initial(
        self,
        model: Arx | None = None,
        covariance: npt.ArrayLike | None = None,
        noise_std: float | None = None,
    ) -> RlsState:
        """Start from nothing, from a model as a first guess, or from a model that is known this well.

        A batch `Fit` gives all three: `initial(fit.model, fit.covariance, fit.noise_std)`.
        """
        theta = (self.pole or 0.0, 0.0, 0.0)
        empty = _NO_INFORMATION
        # What is not learnt has the regressor 0; its information keeps the matrix regular and the value as it is.
        known = (empty if self.pole is None else _CERTAIN, empty if self.offset else 1.0)
        information: Symmetric = (known[0], 0.0, 0.0, empty, 0.0, known[1])
        variance, residuals = 0.0, 0
        if model is not None:
            self._check_model(model)
            theta = (
                model.a[0] if self.pole is None else self.pole,
                model.b[0],
                model.offset if self.offset else 0.0,
            )
        if covariance is not None:
            if model is None or noise_std is None or not 0.0 < noise_std < math.inf:
                raise InvalidValue(
                    f"a covariance needs its model and a noise_std above 0, got {model} and {noise_std}"
                )
            variance, residuals = noise_std**2, self.warm_up
            information = self._information(np.asarray(covariance, dtype=float), variance)
        return RlsState(
            theta=theta,
            information=information,
            last=None,
            commands=(None,) * self.delay,
            noise_variance=variance,
            residuals=residuals,
            learnt_since_drift=self.warm_up if covariance is not None else 0,
            from_model=model is not None,
        )

    def _check_model(self, model: Arx) -> None:
        if len(model.a) != 1 or len(model.b) != 1 or model.delay != self.delay:
            raise InvalidValue(
                f"recursive least squares with delay {self.delay} starts from a first-order model with that "
                f"delay, got {model}"
            )

    def _information(self, covariance: Array, variance: float) -> Symmetric:
        p = self.parameters
        if covariance.shape != (p, p) or not np.isfinite(covariance).all():
            raise InvalidValue(f"the covariance must be a finite {p}×{p} matrix, got {covariance.tolist()}")
        # Scaling to unit variances first: the units of a, b and c can be many powers of ten apart.
        scale = np.sqrt(np.maximum(np.diagonal(covariance), 1e-300))
        r = np.eye(3)
        r[:p, :p] = variance * np.linalg.pinv(covariance / np.outer(scale, scale)) / np.outer(scale, scale)
        if self.pole is not None:
            r[0, :], r[:, 0] = 0.0, 0.0
            r[0, 0] = _CERTAIN
        r11, r12, r13, r22, r23, r33 = (float(r[i, j]) for i in range(3) for j in range(i, 3))
        return r11, r12, r13, r22, r23, r33

    def update(self, state: RlsState, measurement: float | None, applied: float | None) -> RlsState:
        """Take in y(k+1), measured now, and u(k), the command in force since the previous sample.

        Missing or non-finite values are passed over: nothing is learnt until a sample is complete again.
        """
        y = measurement if measurement is not None and abs(measurement) < _BEYOND else None
        u = applied if applied is not None and abs(applied) < _BEYOND else None
        commands = (u, *state.commands)
        drive = commands[self.delay]
        mean, movement = state.command_mean, state.command_variance
        if drive is not None:
            if mean is None:
                mean = drive
            weight = 1.0 / self.window
            away = drive - mean
            mean += weight * away
            movement = (1.0 - weight) * (movement + weight * away * away)
        remembered = (y, commands[: self.delay], mean, movement)
        if y is None or drive is None or state.last is None:
            return replace(state, last=y, commands=remembered[1], command_mean=mean, command_variance=movement)
        phi = (state.last if self.pole is None else 0.0, drive, 1.0 if self.offset else 0.0)
        a, b, c = state.theta
        error = y - a * state.last - b * phi[1] - c * phi[2]
        factors = factor(state.information)
        spread = quadratic(factors, phi)  # φᵀR⁻¹φ: the estimate's own share in the variance of the error
        noise = max(state.noise_variance, (1e-9 * max(abs(y), abs(phi[0]))) ** 2)  # never below rounding
        evidence = self._noise(state, error * error / (1.0 + spread), noise, informed=spread < 1.0)
        sums, alarm = self._watch(state, error / math.sqrt(noise * (1.0 + spread)) if noise > 0.0 else 0.0)
        theta, information = state.theta, state.information
        updates, learnt = state.updates, state.learnt_since_drift
        if alarm:
            information, learnt = self._doubt(information), 0
            factors = factor(information)
            spread = quadratic(factors, phi)
        if self._is_excited(b, movement, factors, noise):
            wider = _absorb(information, phi, spread, self.forgetting)
            gain = solve(factor(wider), phi)
            moved = (a + gain[0] * error, b + gain[1] * error, c + gain[2] * error)
            if all(map(math.isfinite, (*moved, *wider))):  # else beyond all range: keep what was known
                theta, information, updates, learnt = moved, wider, updates + 1, learnt + 1
        drifts = state.drifts + int(alarm)
        return RlsState(
            theta, information, *remembered, *evidence, updates, *sums, drifts, learnt, from_model=state.from_model
        )

    def _noise(self, state: RlsState, squared: float, noise: float, *, informed: bool) -> tuple[float, int]:
        """Variance of the noise and how many errors it rests on; a wild error counts only as a large one."""
        if not informed:  # the error still says more about the estimate than about the noise
            return state.noise_variance, state.residuals
        count = state.residuals + 1
        if count > self.warm_up:
            squared = min(squared, (0.5 * _CLIP) ** 2 * noise)
        weight = max(1.0 / count, 1.0 / self.noise_memory)
        return state.noise_variance + weight * (squared - state.noise_variance), count

    def _is_excited(self, b: float, movement: float, factors: Factors, noise: float) -> bool:
        deviation = math.sqrt(movement)
        if deviation <= self.min_movement:
            return False
        # The gain used is the far end of its uncertainty: what is not known yet must be learnable.
        b_variance = noise * (1.0 / factors[1] + factors[5] ** 2 / factors[2])
        return (abs(b) + 2.0 * math.sqrt(b_variance)) * deviation >= self.excitation * math.sqrt(noise)

    def _watch(self, state: RlsState, z: float) -> tuple[tuple[float, float, float], bool]:
        """The three cumulative sums after the normalised error z, and whether one of them says drift."""
        if state.learnt_since_drift < self.warm_up or state.residuals < self.warm_up:
            return (0.0, 0.0, 0.0), False
        z = max(-_CLIP, min(_CLIP, z))
        rising = max(0.0, state.rising + 2.0 * z - 2.0)  # ln N(z; 2, 1)/N(z; 0, 1) = 2z − 2
        falling = max(0.0, state.falling - 2.0 * z - 2.0)
        louder = max(0.0, state.louder + 0.375 * z * z - math.log(2.0))  # ln N(z; 0, 2²)/N(z; 0, 1)
        if max(rising, falling, louder) < math.log(self.false_alarm_samples):
            return (rising, falling, louder), False
        return (0.0, 0.0, 0.0), True

    def _doubt(self, r: Symmetric) -> Symmetric:
        """Information after a drift alarm: what was learnt counts little, so that new samples count much."""
        k = _KEPT_AFTER_DRIFT
        return (k * r[0], k * r[1], k * r[2], k * r[3], k * r[4], k * r[5] if self.offset else r[5])

    def model(self, state: RlsState) -> Arx | None:
        """The present estimate; None while there is none."""
        if not state.from_model and state.updates < 3 * self.parameters:
            return None
        a, b, c = state.theta
        return first_order(a, b, self.delay, c)

    def covariance(self, state: RlsState) -> Array:
        """Of (a, b) or (a, b, c), with the noise as seen so far; enormous where nothing is known."""
        factors = factor(state.information)
        units = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))[: self.parameters]
        rows = [solve(factors, unit)[: self.parameters] for unit in units]
        return state.noise_variance * np.array(rows)


def _absorb(r: Symmetric, phi: tuple[float, float, float], spread: float, forgetting: float) -> Symmetric:
    """R with what it knew along φ faded by the forgetting factor, and one sample along φ added."""
    p1, p2, p3 = phi
    net = 1.0 - (1.0 - forgetting) / spread if spread > 0.0 else 1.0
    return (
        r[0] + net * p1 * p1,
        r[1] + net * p1 * p2,
        r[2] + net * p1 * p3,
        r[3] + net * p2 * p2,
        r[4] + net * p2 * p3,
        r[5] + net * p3 * p3,
    )
