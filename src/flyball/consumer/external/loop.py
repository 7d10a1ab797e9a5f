"""The consumer's loop without a consumer: for programs that keep their own client (`regulate`).

It has no task and no thread: whoever uses it says what happened and calls `tick` every now and then; the window
that comes back is to be kept until the next tick. The decisions are those of `policy`, the same as everywhere.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from flyball.consumer.metrics import Sensing
from flyball.consumer.policy import (
    DITHER_S,
    FIRST_WINDOW,
    AimState,
    DitherState,
    Goal,
    Rate,
    Regulator,
    Seen,
    aim,
    dither_step,
    guard_for,
    parse_goal,
    regulator,
)
from flyball.consumer.policy.pacing import Bucket, pace_of, take
from flyball.control.filters import ewma
from flyball.control.record import LoopRecord
from flyball.errors import InvalidValue
from flyball.loops.policy import Observation, Policy, decide, start

_LEAST_WINDOW = 1e-4  # a pace stands for windows below 1, so they may be as small as a rate needs
_KEEP_RESIDENCE = 0.6  # part of the old residence time that stays


class Regulation:
    """A goal, what was seen, and the window that follows."""

    def __init__(
        self,
        goal: str | Goal,
        controller: Regulator = None,
        *,
        max_window: int,
        period_s: float = 1.0,
        name: str = "regulated",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_window < 1:
            raise InvalidValue(f"max_window is a number of messages from 1, got {max_window}")
        self._goal = parse_goal(goal)
        law = regulator(self._goal, controller)
        limits = (_LEAST_WINDOW, float(max_window))
        self._policy = Policy(name, law, period_s, limits, guard_for(law), glide=False)
        self._state = start(self._policy, FIRST_WINDOW)
        self._aiming, self._dithering = AimState(), DitherState()
        self._now = now
        self._sampled_s = self._ticked_s = now()
        self.sensing = Sensing()
        self.sensing.sample(self._sampled_s, None)
        self.wanted, self.window = FIRST_WINDOW, 1
        self.residence_s: float | None = None
        self.pace_per_s = pace_of(self.wanted, None, self._rate)
        self._bucket = Bucket()
        self.seen: Seen | None = None
        self.records: deque[LoopRecord] = deque(maxlen=10_000)

    @property
    def goal(self) -> Goal:
        return self._goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        new = parse_goal(goal)
        if type(new) is not type(self._goal):
            raise InvalidValue(
                f"this program regulates {self._goal}; a goal of another kind needs a new regulate()"
            )
        self._goal = new
        if self.residence_s is None:
            self.pace_per_s = pace_of(self.wanted, None, self._rate)

    @property
    def _rate(self) -> float | None:
        return self._goal.per_s if isinstance(self._goal, Rate) else None

    @property
    def status(self) -> str:
        """What there is to say at the moment; empty in everyday operation."""
        return (
            "" if not self.records else "; ".join(filter(None, (self.records[-1].reason, self.records[-1].alert)))
        )

    @property
    def is_due(self) -> bool:
        """Whether `tick` would do something now."""
        return self._now() - self._ticked_s >= DITHER_S

    def tick(self, *, full: bool, round_trip_s: float = 0.0) -> int:
        """The window from now on. `full`: the window was used up, no message was lacking."""
        now_s = self._now()
        if now_s - self._ticked_s < DITHER_S:
            return self.window
        self._ticked_s = now_s
        self.sensing.tick(full=full, round_trip_s=round_trip_s)
        if now_s - self._sampled_s >= self._policy.period_s:
            self._sampled_s = now_s
            self._sample(now_s)
        if self.pace_per_s is None:
            self._dithering, self.window = dither_step(self._dithering, self.wanted)
        else:
            self.window = 1
        return self.window

    @property
    def wait_s(self) -> float:
        """How long the next message has to wait, however much room the window has."""
        if self.pace_per_s is None:
            return 0.0
        return take(self._bucket, self._now(), self.pace_per_s)[1]

    def handed(self) -> None:
        """A message was handed over."""
        self.sensing.handed += 1
        if self.pace_per_s is not None:
            self._bucket, _ = take(self._bucket, self._now(), self.pace_per_s)

    def _sample(self, now_s: float) -> None:
        seen = self.sensing.sample(now_s, None)
        if seen is None:
            return
        self.seen = seen
        self._aiming, target = aim(self._goal, self._aiming, seen)
        observed = Observation(now_s, target.setpoint, target.measurement, None, target.disturbances)
        self._state, record = decide(self._policy, self._state, observed)
        self.records.append(record)
        if isinstance(record.command, float):
            self.wanted = record.command
        if seen.residence_s is not None:
            self.residence_s = ewma(self.residence_s, seen.residence_s, _KEEP_RESIDENCE)
        self.pace_per_s = pace_of(self.wanted, self.residence_s, self._rate)
