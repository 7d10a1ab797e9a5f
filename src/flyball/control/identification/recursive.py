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

Wrong measurements. A sample whose error exceeds 4 deviations is not learnt from, nor is the sample after it, whose
regressor it would be: one outlier would move the estimate, and as a regressor outweigh hundreds of samples. A
sensor that repeats the same number while noise is known says nothing either. Errors that go on are no outlier but
a change: an alarm, after which the offset is open (a step of the load moves it and nothing else) and a and b count
little. The deviation of the noise starts as a median, and what was learnt before it was known is dropped.

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
_REJECT = 4.0  # deviations beyond which an error is no noise: once in 16,000 samples it is
_TRIAL = 15  # errors after which the noise is known well enough to reject samples
_MEDIAN_OF_SQUARE = 0.4549  # of the square of a standard normal number
_DOUBTFUL_AGAIN, _DOUBT_FADES = 1.6, 0.7  # soon after an alarm, two doubtful samples in a row are the next
_ALL_DOUBTFUL = 2.5  # four in a row are one at any time
_CLEAN = 0.8  # of the memory, in samples without a doubt, before an estimate is to be designed with
_CORRELATED, _CORRELATION_MEMORY = 0.3, 40  # chance alone gives ±0.11
_TOO_MANY_SMALL = 0.7  # chance alone gives 0.5 ± 0.06
_STUCK = 2  # repetitions of one and the same measurement that no sensor with noise gives


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
    squares: tuple[float, ...] = ()
    """The first squared errors, as long as they are too few for a mean that one of them cannot spoil."""
    newest: float | None = None
    """The previous measurement, usable or not, and how often it was `repeated`."""
    repeated: int = 0
    doubt: float = 0.0
    """Doubtful samples of late."""
    correlation: float = 0.0
    """Mean product of successive normalised errors: 0 where the model explains all that can be explained."""
    loaded: bool = False
    """Whether it was so large that a load must be moving."""
    last_error: float | None = None
    small_errors: float = 0.5
    """Share of errors below the median of noise of that variance: far more where a few large ones make it up."""


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

    @property
    def _load_alarm(self) -> float:
        """The mean product that chance exceeds no oftener than false alarms are allowed."""
        return math.sqrt(2.0 * math.log(self.false_alarm_samples) / (2.0 * _CORRELATION_MEMORY))

    @property
    def parameters_learnt(self) -> int:
        return self.parameters - int(self.pole is not None)

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
        repeated = state.repeated + 1 if y is not None and y == state.newest else 0
        seen = replace(
            state,
            last=y,
            commands=commands[: self.delay],
            command_mean=mean,
            command_variance=movement,
            newest=y,
            repeated=repeated,
            last_error=None,
        )
        if y is None or drive is None or state.last is None:
            return seen
        if repeated >= _STUCK and state.noise_variance > 0.0:
            return replace(seen, last=None)
        return self._learn(seen, state, y, (state.last, drive))

    def _learn(self, seen: RlsState, state: RlsState, y: float, regressor: tuple[float, float]) -> RlsState:
        """`seen` is the state with the new sample remembered, `state` the one before."""
        past, drive = regressor
        phi = (past if self.pole is None else 0.0, drive, 1.0 if self.offset else 0.0)
        a, b, c = state.theta
        error = y - a * past - b * phi[1] - c * phi[2]
        information = state.information
        factors = factor(information)
        spread = quadratic(factors, phi)  # φᵀR⁻¹φ: the estimate's own share in the variance of the error
        noise = max(state.noise_variance, (1e-9 * max(abs(y), abs(phi[0]))) ** 2)  # never below rounding
        z = error / math.sqrt(noise * (1.0 + spread)) if noise > 0.0 else 0.0
        doubtful = abs(z) > _REJECT and state.residuals >= _TRIAL
        variance, residuals, squares = self._noise(
            state, error * error / (1.0 + spread), noise, informed=spread < 1.0
        )
        sums, drifted = self._watch(state, z)
        doubt = _DOUBT_FADES * state.doubt + float(doubtful)
        again = doubt > (_DOUBTFUL_AGAIN if state.learnt_since_drift < self.warm_up else _ALL_DOUBTFUL)
        learnable = not doubtful and self._is_excited(b, seen.command_variance, factors, noise)
        updates, learnt, theta = state.updates, state.learnt_since_drift, state.theta
        correlation = state.correlation
        if state.last_error is not None and learnable:
            product = max(-_CLIP, min(_CLIP, z)) * state.last_error
            correlation += (product - correlation) / _CORRELATION_MEMORY
        # Errors that follow each other come from a load that moves; what was learnt meanwhile took it for the
        # plant.
        loaded = self.parameters_learnt > 1 and (
            correlation >= (_CORRELATED if state.loaded else self._load_alarm)
        )
        load_rests = state.loaded and not loaded
        small = state.small_errors
        if state.noise_variance > (1e-9 * max(abs(y), abs(phi[0]))) ** 2:
            small += (float(z * z < _MEDIAN_OF_SQUARE) - small) / _CORRELATION_MEMORY
        if drifted or again or load_rests:
            information, learnt, doubt, correlation = self._doubt(information), 0, 0.0, 0.0
            residuals = min(residuals, self.warm_up)
            factors = factor(information)
            spread = quadratic(factors, phi)
        elif squares == () and state.squares:  # the noise is known now; what was learnt before may be anything
            information, learnt = self._forget(information), 0
        elif learnable:
            wider = _absorb(information, phi, spread, self.forgetting)
            gain = solve(factor(wider), phi)
            moved = (a + gain[0] * error, b + gain[1] * error, c + gain[2] * error)
            if all(map(math.isfinite, (*moved, *wider))):  # else beyond all range: keep what was known
                theta, information, updates, learnt = moved, wider, updates + 1, learnt + 1
        return replace(
            seen,
            theta=theta,
            information=information,
            last=None if doubtful else y,
            noise_variance=variance,
            residuals=residuals,
            squares=squares,
            updates=updates,
            rising=sums[0],
            falling=sums[1],
            louder=sums[2],
            drifts=state.drifts + int(drifted),
            learnt_since_drift=learnt,
            doubt=doubt,
            correlation=correlation,
            loaded=loaded,
            small_errors=small,
            last_error=None if doubtful else max(-_CLIP, min(_CLIP, z)),
        )

    def _noise(
        self, state: RlsState, squared: float, noise: float, *, informed: bool
    ) -> tuple[float, int, tuple[float, ...]]:
        """Variance of the noise, how many errors it rests on, and the first of them.

        A wild error counts only as a large one; until enough of them are there to say what is wild, their median
        is the variance.
        """
        if not informed:  # the error still says more about the estimate than about the noise
            return state.noise_variance, state.residuals, state.squares
        count = state.residuals + 1
        if count <= _TRIAL:
            squares = (*state.squares, squared)
            median = sorted(squares)[len(squares) // 2] / _MEDIAN_OF_SQUARE
            return median, count, squares if count < _TRIAL else ()
        squared = min(squared, (0.5 * _CLIP) ** 2 * noise)
        weight = max(1.0 / count, 1.0 / self.noise_memory)
        return state.noise_variance + weight * (squared - state.noise_variance), count, ()

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
        """Information after a drift alarm: what was learnt counts little, so that new samples count much.

        Of the offset nothing is known any more: a and b keep what they are known by at any offset.
        """
        k = _KEPT_AFTER_DRIFT
        if not self.offset:
            return (k * r[0], k * r[1], 0.0, k * r[3], 0.0, r[5])
        r11, r12, r22 = r[0] - r[2] * r[2] / r[5], r[1] - r[2] * r[4] / r[5], r[3] - r[4] * r[4] / r[5]
        return (
            max(k * r11, _NO_INFORMATION),
            k * r12,
            0.0,
            max(k * r22, _NO_INFORMATION),
            0.0,
            _NO_INFORMATION,
        )

    def _forget(self, r: Symmetric) -> Symmetric:
        """No information, but on what is not learnt at all."""
        empty = _NO_INFORMATION
        return (empty if self.pole is None else r[0], 0.0, 0.0, empty, 0.0, empty if self.offset else r[5])

    def model(self, state: RlsState) -> Arx | None:
        """The present estimate; None while there is none."""
        if not state.from_model and state.updates < 3 * self.parameters:
            return None
        a, b, c = state.theta
        return first_order(a, b, self.delay, c)

    def is_trustworthy(self, state: RlsState) -> bool:
        """Whether enough was learnt since the last doubt, and the errors do not say that something is left out.

        Errors that follow each other, or a few large ones among many small ones, have a load or a fault behind
        them that the model takes for the plant.
        """
        clean = max(3 * self.parameters, round(_CLEAN / (1.0 - self.forgetting + 1.0 / self.noise_memory)))
        return (
            state.learnt_since_drift >= clean
            and state.doubt < 0.1
            and state.small_errors < _TOO_MANY_SMALL
            and (state.correlation < _CORRELATED or self.parameters_learnt == 1)
        )

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
