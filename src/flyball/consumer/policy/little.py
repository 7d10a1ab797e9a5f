"""The default controller of a rate: feed-forward by Little's law, and a trim by feedback.

In a window that is always full, window = rate × residence time. The residence time is *measured per message*, so
the window that a rate needs is known without having been tried:

    window(k) = goal(k) · R(k) · m(k)

R(k)  residence time: a smoothed mean; where two samples in a row are off it by more than `jump` and agree with
      each other, the estimate takes them over at once. So a handler that has become twice as slow is met
      within two or three samples, and a moment of stalling, or noise, is ignored.
      Of irregular handlers the median of a second's ticks is far below their mean, which is what counts: the
      ratio of the two (`irregularity`) is a factor of R(k), learned over many messages.
m(k)  the trim, near 1: what Little's law misses (gaps between messages, rounding). Any controller of the catalogue
      whose command is m and whose measurement is rate/goal; the plant it sees is y(k+1) = m(k), whatever the gain
      of the real one, for R(k) carries that gain. So one certificate holds for every plant: see `default_trim`.

A window that differs from the one in force by less than `rest` is not set: it would only follow the
jitter of R(k) and m(k). A lasting error goes on adding up in m(k), so it leads to a move after a while.

The trim learns only from samples that say something about it: not while messages are lacking (the window was not
full; unless the rate is above the goal all the same), not while the goal is out of reach, not within three
samples of a new goal or a jump of R, whose effect the metric may show late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from flyball.consumer.policy import reachability
from flyball.consumer.policy.goals import ConsumerDisturbances, disturbances_of
from flyball.consumer.policy.reachability import Reachability
from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    check_between,
    hold_unusable,
    scalar_error,
)
from flyball.control.controllers.pi import Pi
from flyball.control.filters import ewma
from flyball.control.limits import clamp
from flyball.control.step import Action, Controller, ReasonCode, Sample, Value, hold
from flyball.control.wrappers.common import check_inner

_UNSETTLED = 3  # samples after a change from which the trim learns nothing
_MOST_ERROR = 0.25  # relative error up to which the trim corrects it
_MOST_JUMP = 2.0  # most change of the residence time that one sample may show, as a factor
_TRIM = (0.4, 2.5)
_IRREGULAR = 1.15  # mean / median of the residence time from which handlers count as irregular; stalls make some
_MOST_IRREGULAR = 10.0
_LEARNED = 100.0  # messages after which an older ratio counts for a third


def default_trim() -> Pi:
    """Integral action with the pole 0.9 on the plant y(k+1) = m(k).

    The pole is a compromise that noise decides: a metric with relative noise s moves the true rate by
    s·√(α/(2−α)), with α = 0.1 by 0.23·s, so 30 % of noise leaves 6.9 %. Proven for every plant that Little's
    law holds for, with two samples of dead time to spare:

    >>> from flyball.control.gains import Gains
    >>> from flyball.control.models import first_order
    >>> from flyball.control.verification.verify import verify
    >>> trim = default_trim()
    >>> [verify(first_order(0.0, 1.0, delay), Gains(trim.kp, trim.ki)).verdict for delay in (0, 1, 2)]
    ['accepted', 'accepted', 'accepted']
    """
    return Pi(kp=0.0, ki=0.1)


@dataclass(frozen=True, slots=True)
class LittleState:
    """`outlier_s`: the last residence time, if it was far off the mean."""

    command: float
    trim: Any
    factor: float = 1.0
    residence_s: float | None = None
    irregularity: float = 1.0
    outlier_s: float | None = field(default=None, metadata={"stored_as": "doubted_s"})
    setpoint: float | None = None
    samples_since_change: int = field(default=0, metadata={"stored_as": "calm"})
    reachability: Reachability = field(default_factory=Reachability, metadata={"stored_as": "reach"})


@dataclass(frozen=True, slots=True)
class Little:
    """Window = goal × residence time measured per message, trimmed by feedback: the consumer's default.

    Needs the residence time and the used share of the window (`ConsumerDisturbances`); a `Consumer` and its twin
    supply both. It goes to a new goal at once.

    >>> controller = Little()
    >>> state = controller.initial(1.0)
    >>> measured = ConsumerDisturbances(residence_s=0.017, used=1.0)  # 17 ms a message, the window was full
    >>> state, action = controller.step(state, Sample(1.0, 1.0, 400.0, 58.8, 1.0, measured))
    >>> round(action.command, 2), action.parts
    (6.8, {'ff': 6.8..., 'trim': 0.0})
    >>> state, action = controller.step(state, Sample(2.0, 1.0, 800.0, 400.0, action.command, measured))
    >>> round(action.command, 2)
    13.6
    """

    inner: Controller[Any] = field(
        default_factory=default_trim,
        metadata={"help": "the controller of the trim m, which starts at 1; a config file writes its kp and ki"},
    )
    keep: float = field(
        default=0.6, metadata={"help": "part of the old residence time that stays, from 0 to below 1"}
    )
    jump: float = field(default=0.2, metadata={"help": "relative change of the residence time that is no noise"})
    rest: float = field(
        default=0.01,
        metadata={"help": "relative change of the window that is not worth a move, from 0 to below 1"},
    )

    def __post_init__(self) -> None:
        check_inner(self)
        check_between(self, "keep", 0.0, 1.0, high_open=True)
        check_between(self, "jump", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "rest", 0.0, 1.0, high_open=True)

    def initial(self, command: Value) -> LittleState:
        return LittleState(as_scalar(command), self.inner.initial(1.0))

    def step(self, state: LittleState, sample: Sample) -> tuple[LittleState, Action]:
        disturbances = disturbances_of(sample)
        full = disturbances.is_full
        state, jumped = self._update_residence(state, self._new_residence(state, sample, disturbances))
        state = _update_irregularity(state, disturbances, sample.dt)
        if scalar_error(sample) is None or sample.measurement is None:
            return state, hold_unusable(sample)
        if state.residence_s is None:
            return state, hold(
                "no message was handled yet, so the residence time is not known: held", ReasonCode.HELD_NO_ESTIMATE
            )
        goal, rate = as_scalar(sample.setpoint), as_scalar(sample.measurement)
        if goal <= 0.0:
            return state, hold(
                f"a goal of {goal:g} messages a second has no window: held", ReasonCode.HELD_INVALID_SAMPLE
            )
        in_force = applied_or(sample, state.command)
        changed = jumped or goal != state.setpoint
        samples_since_change = 0 if changed else state.samples_since_change + 1
        trim, factor, action = state.trim, state.factor, None
        limited = state.reachability.limit is not None  # an error that no window removes is not the trim's
        if samples_since_change >= _UNSETTLED and (rate > goal or (full and not limited)):
            ratio = clamp(rate / goal, 1.0 - _MOST_ERROR, 1.0 + _MOST_ERROR)
            trim, action = self.inner.step(
                trim, Sample(sample.time, sample.dt, 1.0, ratio, factor, sample.disturbances)
            )
            if action.command is not None:
                factor = clamp(as_scalar(action.command), *_TRIM)
        # the rate handed over rises with the window, the rate finished may not
        finished = rate if disturbances.done_per_s is None else min(rate, disturbances.done_per_s)
        reach = reachability.update(state.reachability, goal, finished, in_force, full)
        feed_forward = goal * state.residence_s
        if state.irregularity > _IRREGULAR:
            feed_forward *= state.irregularity
        command = feed_forward * factor
        if not math.isfinite(command):
            return state, HOLD_NOT_FINITE
        if not changed and abs(command - state.command) < self.rest * state.command:
            command = state.command
        parts, saturated = {"ff": feed_forward, "trim": feed_forward * (factor - 1.0)}, 0
        code, reason = ReasonCode.UNSPECIFIED, ""
        if reach.limit is not None and reach.limit < command:
            command, saturated = reach.limit, int(reach.held_window is not None)
            code, reason = reachability.explain(reach, goal)
        elif not full:
            code = ReasonCode.STARVED
            reason = f"the queue had no more: the window was full for {disturbances.used or 0.0:.0%} of the time"
        after = replace(
            state,
            command=command,
            trim=trim,
            factor=factor,
            setpoint=goal,
            samples_since_change=samples_since_change,
            reachability=reach,
        )
        return after, Action(command, parts, saturated, reason, code)

    @staticmethod
    def _new_residence(state: LittleState, sample: Sample, disturbances: ConsumerDisturbances) -> float | None:
        """The measured residence time. The very first is checked against Little's law itself: while
        connections warm up single messages take long, and window / rate cannot be less than what they take."""
        new_s, rate = disturbances.residence_s, sample.measurement
        if (
            new_s is None
            or state.residence_s is not None
            or not disturbances.is_full
            or not isinstance(rate, float)
            or rate <= 0
        ):
            return new_s
        return min(new_s, applied_or(sample, state.command) / rate)

    def _update_residence(self, state: LittleState, new_s: float | None) -> tuple[LittleState, bool]:
        """Return the state with the new residence time, and whether that jumped."""
        mean_s = state.residence_s
        if new_s is None or new_s <= 0.0:
            return state, False
        if mean_s is None:
            return replace(state, residence_s=new_s), False
        far = abs(new_s - mean_s) > self.jump * mean_s
        if far and state.outlier_s is not None and abs(new_s - state.outlier_s) <= self.jump * new_s:
            return replace(state, residence_s=new_s, outlier_s=None), True
        within = clamp(new_s, mean_s / _MOST_JUMP, mean_s * _MOST_JUMP)
        return replace(state, residence_s=ewma(mean_s, within, self.keep), outlier_s=new_s if far else None), far


def _update_irregularity(state: LittleState, disturbances: ConsumerDisturbances, dt: float) -> LittleState:
    mean_s, done = disturbances.mean_residence_s, disturbances.done_per_s
    if mean_s is None or done is None or state.residence_s is None or state.residence_s <= 0.0:
        return state
    ratio = clamp(mean_s / state.residence_s, 1.0, _MOST_IRREGULAR)
    return replace(state, irregularity=ewma(state.irregularity, ratio, math.exp(-max(0.0, done * dt) / _LEARNED)))
