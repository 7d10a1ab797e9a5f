"""Pacing: a token bucket between the window and the handlers, for an even flow and as an upper bound of a rate.

The window is what a consumer's loop sets; a pace is another actuator. Where a `Consumer` is asked for it by
name, the pace alone decides. Otherwise it bounds a rate: a window lets any number of quick messages through, and
one that was right a moment ago is too wide when handlers become faster. `regulate` paces where a goal needs less
than one message at a time. Messages are handed over at most at the pace, with a small burst to make up for late
timers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from flyball.control.filters import ewma
from flyball.control.limits import clamp
from flyball.errors import InvalidValue

Pacing: TypeAlias = Literal["off", "always", "bounded", "below one"]
"""Whether messages are handed over at a pace.

off        never
always     the pace decides, the window does not
bounded    a rate goal is an upper bound; where it needs less than one message at a time, or nobody knows yet, the
           pace decides
below one  the pace stands for a window of less than one message
"""

KEEP_RESIDENCE = 0.6
"""Part of the old residence time that stays in the mean by which `carry_out` decides."""
_MOST = 1.1  # highest pace as a multiple of the goal, to make up for late timers
_BOUND = 1.15  # the same where the window decides and the pace is its bound: stalls are made up for
_ROOM = 2.0  # width of the window beside what the goal needs, where the pace decides
_BURST_S = 0.1  # timers of a busy machine are late by so much; what is not made up for is missing from the rate
_BOUND_BURST_S = 0.05  # covers a whole window that is above the mean for one tick
_SCALE_FROM, _SCALE_KNOWN = 5, 10  # samples from which a metric's scale is estimated, and until it is known
_SCALE_MOVE, _KEEP_SCALE = 1.5, 0.95
_EARLY_S = 1e-6  # a token that is due within this time is there: no timer is more exact


class Actuation(NamedTuple):
    """How a command is carried out: the mean of the whole windows, and the pace (None: as messages come)."""

    window: float
    pace_per_s: float | None = None
    burst_s: float = _BURST_S


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The state of a token bucket: `due_s` is when the next message may go; None: at once."""

    due_s: float | None = None


def take_token(
    state: TokenBucket, now_s: float, rate_per_s: float, burst_s: float = _BURST_S
) -> tuple[TokenBucket, float]:
    """Take the token of one message: the state after it, and how long to wait before handing it over.

    Unused tokens last for `burst_s` and no longer, so that a pause is not followed by a flood.

    >>> state, waits = TokenBucket(), []
    >>> for _ in range(3):
    ...     state, wait_s = take_token(state, 10.0, rate_per_s=100.0)
    ...     waits.append(round(wait_s, 3))
    >>> waits
    [0.0, 0.01, 0.02]
    """
    if not rate_per_s > 0.0:
        raise InvalidValue(f"rate_per_s must be > 0, got {rate_per_s}")
    due_s = now_s if state.due_s is None else max(state.due_s, now_s - burst_s)
    return TokenBucket(due_s + 1.0 / rate_per_s), max(0.0, due_s - now_s)


def count_tokens(state: TokenBucket, now_s: float, rate_per_s: float, burst_s: float = _BURST_S) -> int:
    """Count the messages that may go now.

    >>> state = TokenBucket(due_s=10.0)
    >>> [count_tokens(state, now_s, rate_per_s=100.0, burst_s=0.02) for now_s in (9.99, 10.0, 10.015, 20.0)]
    [0, 1, 2, 3]
    """
    if state.due_s is None:
        return 1
    early_s = now_s + _EARLY_S - max(state.due_s, now_s - burst_s)
    return 0 if early_s < 0.0 else 1 + math.floor(early_s * rate_per_s)


def pace_for_window(window: float, residence_s: float | None, goal_per_s: float | None) -> float | None:
    """The pace that stands for a window of less than one message; None: the window alone decides.

    By Little's law a window below 1 is one message at a time, window / residence time of them a second. A window
    that is closed for part of the time would give the same mean, but it lets any number of quick messages through
    while it is open. Until the residence time is known, the goal itself is the pace.

    `goal_per_s` is the rate of the goal (None: the goal is no rate). A pace beyond a tenth more than that would
    follow from a residence time that has changed since: the next sample corrects it.

    >>> pace_for_window(1.0, residence_s=None, goal_per_s=50.0)
    50.0
    >>> pace_for_window(0.2, residence_s=0.004, goal_per_s=50.0)
    50.0
    >>> round(pace_for_window(0.4, residence_s=0.004, goal_per_s=50.0))
    55
    >>> pace_for_window(1.5, residence_s=0.03, goal_per_s=50.0) is None
    True
    """
    if residence_s is None:
        return goal_per_s
    if window >= 1.0:
        return None
    pace = window / max(residence_s, 1e-6)
    return pace if goal_per_s is None else min(pace, _MOST * goal_per_s)


@dataclass(frozen=True, slots=True)
class MetricScale:
    """What a message handed over counts in a metric of the user's own: the mean of metric / rate.

    >>> scale = MetricScale()
    >>> for _ in range(12):
    ...     scale = scale.update(metric=200.0, rate_per_s=100.0)
    >>> scale.pace_for(goal=400.0), MetricScale().pace_for(goal=400.0) is None
    (200.0, True)
    """

    ratio: float | None = None
    samples: int = 0

    def update(self, metric: float | None, rate_per_s: float | None) -> MetricScale:
        """The scale after a sample; single samples move it little, for the metric may be late or noisy."""
        if metric is None or rate_per_s is None or not (metric > 0.0 and rate_per_s > 0.0):
            return self
        samples, ratio = self.samples + 1, metric / rate_per_s
        if samples <= _SCALE_FROM:
            return MetricScale(None, samples)
        if samples > _SCALE_KNOWN and self.ratio is not None:
            ratio = clamp(ratio, self.ratio / _SCALE_MOVE, self.ratio * _SCALE_MOVE)
        counted = samples - _SCALE_FROM
        return MetricScale(ewma(self.ratio, ratio, min(1.0 - 1.0 / counted, _KEEP_SCALE)), samples)

    def pace_for(self, goal: float) -> float | None:
        """The pace that reaches a goal of the metric; None: not known yet."""
        return goal / self.ratio if self.ratio is not None and self.samples >= _SCALE_KNOWN else None


def carry_out(
    command: float, pacing: Pacing, residence_s: float | None, goal_per_s: float | None, most: float = math.inf
) -> Actuation:
    """Turn a command into the window and the pace that carry it out; `goal_per_s` None: the goal is no rate.

    Where the pace decides, the window is wider than the command, so that it does not; at most `most`.

    >>> carry_out(6.8, "off", 0.017, 400.0)[:2], carry_out(6.8, "always", 0.017, 400.0)[:2]
    ((6.8, None), (14.6, 400.0))
    >>> carry_out(6.8, "below one", 0.017, 400.0)[:2], carry_out(0.2, "below one", 0.004, 50.0)[:2]
    ((6.8, None), (1.0, 50.0))
    >>> carry_out(1.0, "bounded", None, 10.0)[:2], carry_out(0.05, "bounded", 0.001, 10.0)[:2]
    ((1.0, 10.0), (1.1, 10.0))
    >>> carry_out(6.8, "bounded", 0.017, 400.0)[0]
    6.8
    >>> round(carry_out(6.8, "bounded", 0.017, 400.0)[1])
    460
    >>> carry_out(6.8, "always", 0.017, 400.0, most=8.0).window
    8.0
    """
    wide = min(_ROOM * command + 1.0, most)
    if pacing == "always":
        return Actuation(wide, goal_per_s)
    if pacing == "below one":
        pace = pace_for_window(command, residence_s, goal_per_s)
        return Actuation(command) if pace is None else Actuation(1.0, pace)
    if pacing == "off" or goal_per_s is None:
        return Actuation(command)
    if residence_s is None:
        return Actuation(command, goal_per_s)
    if goal_per_s * residence_s < 1.0:
        return Actuation(wide, goal_per_s)
    return Actuation(command, _BOUND * goal_per_s, _BOUND_BURST_S)
