"""Models per workload profile, and switching between them while the consumer runs.

A workload profile is a time of day, a kind of message, a handler's branch: something in which the consumer is a
plant of its own, y(k+1) = a·y(k) + b·u(k), with gains designed for it. Below the handlers' capacity the steady
gain b / (1 − a) is one over the residence time of a message (Little's law). The residence time is measured at
every sample; so the current profile is the one whose gain it is nearest to, on a logarithmic scale, and the
user need not name it. The gains then change without a jump of the window (`gain_scheduled`). Size and kind of the
messages need no sensor of their own: they change the plant through the residence time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from flyball.consumer.policy.goals import RESIDENCE_S
from flyball.control.controllers.common import check_finite
from flyball.control.controllers.gain_scheduled import GainScheduled, GainScheduledState, Region
from flyball.control.step import Action, Sample, Value
from flyball.errors import InvalidValue

_HYSTERESIS = 0.1  # part of the border between two profiles by which it must be passed
_LEAST_APART = 1.3  # ratio of two residence times below which one set of gains does for both


@dataclass(frozen=True, slots=True)
class Profile:
    """A workload: its model, and the PI gains that were designed for it."""

    name: str
    a: float
    b: float
    kp: float
    ki: float

    def __post_init__(self) -> None:
        check_finite(self, "a", "b", "kp", "ki")
        if not self.a < 1.0 or not self.b > 0.0:
            raise InvalidValue(
                f"the model of profile {self.name!r} must have a < 1 and b > 0, got a={self.a:g}, b={self.b:g}"
            )

    @property
    def residence_s(self) -> float:
        return (1.0 - self.a) / self.b


@dataclass(frozen=True)
class ProfileScheduled:
    """A PI controller with the gains of the current profile.

    >>> short = Profile("short", a=0.0, b=60.0, kp=0.0, ki=0.006)
    >>> long = Profile("long", a=0.0, b=10.0, kp=0.0, ki=0.036)
    >>> controller = ProfileScheduled((short, long))
    >>> state, command = controller.initial(5.0), 5.0
    >>> for residence_s in (0.017, 0.018, 0.09):
    ...     disturbances = (math.nan, residence_s)
    ...     state, action = controller.step(state, Sample(1.0, 1.0, 400.0, 390.0, command, disturbances))
    ...     command = action.command
    ...     print(round(command, 2), action.reason)
    5.06 profile short
    5.12 profile short
    5.48 profile long (switched)
    """

    profiles: tuple[Profile, ...] = field(metadata={"help": "the profiles, each with its model and gains"})

    def __post_init__(self) -> None:
        names = [profile.name for profile in self.profiles]
        if not names or len(set(names)) < len(names):
            raise InvalidValue(f"profiles must be at least one, with different names, got {names}")
        for faster, slower in pairwise(self._sorted):
            if slower.residence_s < _LEAST_APART * faster.residence_s:
                raise InvalidValue(
                    f"the profiles {faster.name!r} and {slower.name!r} cannot be distinguished: a message takes "
                    f"{faster.residence_s:.3g} s and {slower.residence_s:.3g} s; keep one of them"
                )

    @cached_property
    def _sorted(self) -> tuple[Profile, ...]:
        return tuple(sorted(self.profiles, key=lambda profile: profile.residence_s))

    @cached_property
    def _schedule(self) -> GainScheduled:
        profiles = self._sorted
        borders = [0.0, *(math.sqrt(a.residence_s * b.residence_s) for a, b in pairwise(profiles))]
        return GainScheduled(
            regions=tuple(Region(border, p.kp, p.ki) for border, p in zip(borders, profiles, strict=True)),
            by="disturbance",
            index=RESIDENCE_S,
            hysteresis=_HYSTERESIS * min(borders[1:], default=0.0),
        )

    def initial(self, command: Value) -> GainScheduledState:
        return self._schedule.initial(command)

    def step(self, state: GainScheduledState, sample: Sample) -> tuple[GainScheduledState, Action]:
        after, action = self._schedule.step(state, sample)
        if action.command is None or after.region is None:
            return after, action
        switched = " (switched)" if state.region is not None and after.region != state.region else ""
        reason = f"profile {self._sorted[after.region].name}{switched}"
        return after, Action(action.command, action.parts, action.saturated, reason, action.code)
