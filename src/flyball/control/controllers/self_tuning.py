"""Self-tuning: learns the plant while it controls it, and changes its gains only when the new ones are proven."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    check_between,
    check_finite,
    check_whole,
)
from flyball.control.controllers.pi import Pi, PiState
from flyball.control.design.placement import pair_of, place_poles
from flyball.control.gains import Gains
from flyball.control.identification.recursive import Rls, RlsState
from flyball.control.identification.signals import Limits, prbs
from flyball.control.models import Arx
from flyball.control.step import Action, ReasonCode, Sample, Value, before_offset, seen
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue

_SLOWER = (1.0, 1.5, 2.5, 4.0)  # where this settling cannot be met, a slower one is tried: factors of the settling
_PROBE_PERIOD = 127
_PROBE_MEMORY, _PROBE_ERROR = 40, 0.2  # samples, and deviations of the error; chance alone gives ±0.11
_CONFIDENCE = 0.999  # of the region of models that new gains must be stable on: designs are made for weeks
_CUT = 0.5  # deviations of the command by which the actuator may differ from it, as by rounding
_NEWS = 0.02  # change of a gain, as a part of the larger gain, that is worth a swap


@dataclass(frozen=True, slots=True)
class SelfTuningState:
    """The gains in use and the memory of PI and least squares.

    `command` is what was asked for last, of which `probe` was the probing signal's part; `judged_at` is the
    number of learnt samples when a design was last tried, `verdict` what came of it.
    """

    kp: float
    ki: float
    pi: PiState
    rls: RlsState
    command: float
    probe: float = 0.0
    samples: int = 0
    judged_at: int = 0
    swaps: int = 0
    verdict: str = ""
    probe_error: float = 0.0
    """Mean product of the model's errors and the probe's sign."""


@dataclass(frozen=True, slots=True)
class SelfTuning:
    """PI that identifies its plant as it runs, redesigns itself, and swaps gains only if verified.

    Formula: PI with gains (Kp, Ki), and at each sample recursive least squares (forgetting λ) on y(k+1) = a·y(k)
    + b·u(k−D) + c from measurement and *applied* command. After every `every` samples that were learnt from:
    place poles for the specified settling and overshoot on the estimated model, verify the loop over the
    confidence region of the estimate, and take the new gains only when the verdict is `accepted` (and they
    differ by more than 2 %); otherwise a slower settling is tried, and the gains stay when none passes. A swap is
    bumpless: the new gains continue from the applied command.

    Data of a closed loop teach little while the command rests. `probe` adds a bounded pseudo-random ±probe to
    the command; without it the loop learns from set-point changes and disturbances alone. The PI never sees
    the probe. Where only the gain is unknown (`pole` given, no `offset`), as with a consumer's window, every
    sample teaches it, and a drift is followed without a probe.

    >>> loop, y = SelfTuning(kp=0.0, ki=0.001, settling=8.0, probe=0.2), 100.0
    >>> state = loop.initial(2.0)
    >>> for k in range(120):  # a plant that the loop knows nothing of
    ...     state, action = loop.step(state, Sample(k, 1.0, setpoint=400.0, measurement=y))
    ...     y = 0.26 * y + 59.73 * action.command
    >>> state.swaps > 0, round(0.26 - 59.73 * state.kp, 2), state.verdict  # the poles' product: radius² = 0.37
    (True, 0.37, 'accepted: stable with gain margin ..., phase margin ... and sensitivity peak ...')

    Source: adaptive control, future work of the prefetch and event-processing papers.
    """

    kp: float = field(metadata={"help": "proportional gain at the start: choose a cautious one"})
    ki: float = field(metadata={"help": "integral gain at the start: its sign must be right"})
    settling: float = field(default=10.0, metadata={"help": "settling time to design for, in samples to 2 %"})
    overshoot: float = field(default=0.1, metadata={"help": "overshoot to design for, as a fraction, 0.1 is 10 %"})
    delay: int = field(default=0, metadata={"help": "input delay D of the plant, in samples"})
    forgetting: float = field(default=0.98, metadata={"help": "λ of least squares: memory of 1/(1−λ) samples"})
    every: int = field(default=20, metadata={"help": "learnt samples between two designs"})
    probe: float = field(default=0.0, metadata={"help": "amplitude of the probing signal on the command; 0: none"})
    offset: bool = field(
        default=True, metadata={"help": "whether the model has a constant c; not where no command is no output"}
    )
    pole: float | None = field(
        default=None, metadata={"help": "a, where it is known (0: within a sample all is over); else it is learnt"}
    )

    def __post_init__(self) -> None:
        check_finite(self, "kp", "ki")
        check_between(self, "settling", 1.0, math.inf, high_open=True)
        check_between(self, "overshoot", 0.0, 1.0, high_open=True)
        check_whole(self, "delay", 0)
        check_between(self, "forgetting", 0.5, 1.0)
        check_whole(self, "every", 10)
        check_between(self, "probe", 0.0, math.inf, high_open=True)
        if self.pole is not None:
            check_between(self, "pole", -1.0, 1.0, low_open=True, high_open=True)

    @property
    def _rls(self) -> Rls:
        return _estimator(self.delay, self.forgetting, self.offset, self.pole)

    def initial(self, command: Value) -> SelfTuningState:
        start = as_scalar(command)
        pi = Pi(self.kp, self.ki).initial(start)
        return SelfTuningState(float(self.kp), float(self.ki), pi, self._rls.initial(), start)

    def step(self, state: SelfTuningState, sample: Sample) -> tuple[SelfTuningState, Action]:
        in_force = applied_or(sample, state.command)
        rls = self._learn(state, sample, in_force)
        kp, ki, memory, swaps = state.kp, state.ki, state.pi, state.swaps
        judged_at, verdict = state.judged_at, state.verdict
        aside = in_force - state.probe  # the command that was applied, without the part that only probed
        swapped = False
        probe_error = self._probe_error(state, rls)
        if rls.updates - judged_at >= self.every and self._rls.is_trustworthy(rls):
            judged_at = rls.updates
            if abs(probe_error) < _PROBE_ERROR:
                gains, verdict = self._redesign(rls, Gains(kp, ki), verdict)
            else:
                gains, verdict = None, "gains kept: the plant does not answer the probing signal as the model does"
            if gains is not None:
                kp, ki, swaps, swapped = gains.kp, gains.ki, swaps + 1, True
                memory = Pi(kp, ki).initial(aside)
        memory, action = Pi(kp, ki).step(
            memory, before_offset(seen(sample, sample.measurement, in_force), (state.probe,))
        )
        learnt = (rls, state.samples + 1, judged_at, swaps, verdict, probe_error)
        if action.command is None:
            return self._after(kp, ki, memory, state.command, state.probe, learnt), action
        probe = self.probe * _probing()[state.samples % _PROBE_PERIOD] if self.probe else 0.0
        command = as_scalar(action.command) + probe
        if not math.isfinite(command):
            return self._after(kp, ki, memory, state.command, state.probe, learnt), HOLD_NOT_FINITE
        parts = {**action.parts, "probe": probe} if probe else action.parts
        reason = f"new gains kp={kp:.4g}, ki={ki:.4g}, {verdict}" if swapped else ""
        return self._after(kp, ki, memory, command, probe, learnt), Action(
            command, parts, reason=reason, code=ReasonCode.GAINS_CHANGED if swapped else ReasonCode.UNSPECIFIED
        )

    @staticmethod
    def _after(
        kp: float,
        ki: float,
        pi: PiState,
        command: float,
        probe: float,
        learnt: tuple[RlsState, int, int, int, str, float],
    ) -> SelfTuningState:
        rls, samples, judged_at, swaps, verdict, probe_error = learnt
        return SelfTuningState(kp, ki, pi, rls, command, probe, samples, judged_at, swaps, verdict, probe_error)

    def _learn(self, state: SelfTuningState, sample: Sample, in_force: float) -> RlsState:
        """Take in the sample, without its command where something else decided it.

        At a limit the noise decides when the command comes off it, and what follows the noise teaches the wrong
        sign. A gain alone shows nevertheless.
        """
        measured = sample.measurement
        cut = abs(in_force - state.command) > max(0.5 * self.probe, _CUT * math.sqrt(state.rls.command_variance))
        y = None if isinstance(measured, tuple) else measured
        if cut and self._rls.parameters_learnt > 1:
            return replace(self._rls.update(state.rls, y, None), learnt_since_drift=0)
        return self._rls.update(state.rls, y, in_force)

    def _probe_error(self, state: SelfTuningState, rls: RlsState) -> float:
        """Mean product of the model's errors and the sign of the probe behind them: 0 where b is right.

        The probe is the one part of the command that depends on nothing, neither on the load nor on the set point.
        """
        if not self.probe or rls.last_error is None or state.samples <= self.delay:
            return state.probe_error
        product: float = rls.last_error * _probing()[(state.samples - 1 - self.delay) % _PROBE_PERIOD]
        return state.probe_error + (product - state.probe_error) / _PROBE_MEMORY

    def _redesign(self, rls: RlsState, present: Gains, verdict: str) -> tuple[Gains | None, str]:
        """Gains that are news and proven for every model the data allow, or None, and what was found."""
        model = self._rls.model(rls)
        if model is None or not _is_sensible(model):
            return None, "no usable model yet: gains kept"
        covariance = self._rls.covariance(rls)
        why = ""
        for factor in _SLOWER:
            try:
                gains = place_poles(model, "pi", pair_of(self.settling * factor, self.overshoot))
                if isinstance(gains, Gains) and not _differ(present, gains) and verdict.startswith("accepted"):
                    return None, verdict
                certificate = verify(model, gains, covariance=covariance, confidence=_CONFIDENCE)
            except InvalidValue as error:
                why = why or str(error)
                continue
            if certificate.accepted and isinstance(gains, Gains):
                return gains if _differ(present, gains) else None, f"accepted: {certificate.reason}"
            why = why or certificate.reason
        return None, f"gains kept: {why}"


def _differ(old: Gains, new: Gains) -> bool:
    worth = _NEWS * max(abs(new.kp), abs(new.ki))
    return abs(new.kp - old.kp) > worth or abs(new.ki - old.ki) > worth


def _is_sensible(model: Arx) -> bool:
    """An actuator with an effect, and numbers that arithmetic can bear."""
    return model.b[0] != 0.0 and all(abs(x) < 1e100 for x in (*model.a, *model.b, model.offset))


@functools.cache
def _estimator(delay: int, forgetting: float, offset: bool, pole: float | None) -> Rls:
    known = Rls(delay=delay, offset=offset, pole=pole, forgetting=forgetting)
    if pole is None or offset:
        return known
    return replace(known, excitation=0.0)  # a gain alone shows even at rest, and feedback does not disguise it


@functools.cache
def _probing() -> tuple[Any, ...]:
    """One period of ±1; the same for every loop, so a replay repeats it."""
    return tuple(prbs(_PROBE_PERIOD, 0.0, 1.0, Limits(-1.0, 1.0), seed=1).tolist())
