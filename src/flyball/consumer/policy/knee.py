"""The controller for capacity and latency: as many in flight as the handlers can take, and no more.

Up to the handlers' capacity C the rate grows with the window, rate = window / R₀, with R₀ the residence time of a
message that waits for no other. Beyond it the rate stays at C and only the residence time grows. The knee is at
C · R₀, and

    window(k+1) = rate(k) · R₀ · (1 + headroom) + 1

leads to it from both sides: below the knee rate·R₀ is the window itself, so it grows; beyond it rate·R₀ is the
knee, whatever the window. R₀ is the shortest residence time seen. Handlers that become slower for good would make
it too short and the window would shrink; but where the window has shrunk and the residence time has not, messages
were not waiting for each other: that residence time is the new R₀.

While no message waits for another (the residence time is near R₀) the knee is somewhere above, and the queue tells
how far the window may go: to what publishers send and what waits, (publish rate + depth / sample) · R₀, up to four
times the window a sample. So feed-forward meets a peak of the publishers. For half a minute after messages waited
for each other, the knee is known to be near, and the window approaches it as above, without feed-forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from flyball.consumer.policy.goals import disturbances_of
from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    check_between,
    hold_unusable,
    scalar_error,
)
from flyball.control.limits import clamp
from flyball.control.step import Action, ReasonCode, Sample, Value, hold

_SHRUNK = 0.8  # a window below this part of the one before has shrunk
_FALLEN = 0.9  # a residence time above this part of the one before has not fallen with it
_LATENCY_MARGIN = 0.9  # part of the allowed latency from which the window shrinks
_NO_QUEUEING = (
    1.1  # residence time, as a multiple of the shortest, up to which messages do not wait for each other
)
_MOST_GROWTH = 4.0  # most growth of the window in a sample while they do not
_KNEE_MEMORY = 30  # samples for which the knee counts as near


@dataclass(frozen=True, slots=True)
class KneeState:
    command: float
    base_s: float | None = None
    window: float | None = None
    residence_s: float | None = None
    knee_samples: int = field(default=0, metadata={"stored_as": "felt"})
    """For how many more samples the knee counts as near, since messages waited for each other."""


@dataclass(frozen=True, slots=True)
class Knee:
    """As many in flight as the handlers can take: for the goals capacity and latency.

    >>> from flyball.consumer.policy.goals import ConsumerDisturbances
    >>> controller, state, window = Knee(), Knee().initial(1.0), 1.0
    >>> for k in range(30):  # handlers that take 10 ms, eight at a time: 800/s, the knee is a window of 8
    ...     rate = min(window / 0.01, 800.0)
    ...     residence_s = window / rate
    ...     measured = ConsumerDisturbances(
    ...         residence_s=residence_s, used=1.0, rate_per_s=rate, handling_p95_s=residence_s
    ...     )
    ...     state, action = controller.step(state, Sample(k, 1.0, rate, rate, window, measured))
    ...     window = action.command
    >>> round(rate), round(window, 1)
    (800, 11.0)
    """

    headroom: float = field(default=0.25, metadata={"help": "part of the window beyond the knee"})
    p95_s: float | None = field(default=None, metadata={"help": "longest wait and handling of 95 % of messages"})

    def __post_init__(self) -> None:
        check_between(self, "headroom", 0.0, 2.0, low_open=True)
        if self.p95_s is not None:
            check_between(self, "p95_s", 0.0, math.inf, low_open=True, high_open=True)

    def initial(self, command: Value) -> KneeState:
        return KneeState(as_scalar(command))

    def step(self, state: KneeState, sample: Sample) -> tuple[KneeState, Action]:
        disturbances = disturbances_of(sample)
        rate, residence = disturbances.rate_per_s, disturbances.residence_s
        in_force = applied_or(sample, state.command)
        if scalar_error(sample) is None:
            return state, hold_unusable(sample)
        if rate is None or residence is None or residence <= 0.0:
            return state, hold("no message was handled since the last sample: held", ReasonCode.HELD_NO_ESTIMATE)
        base = residence if state.base_s is None else min(state.base_s, residence)
        if (
            state.window is not None
            and state.residence_s is not None
            and in_force < _SHRUNK * state.window
            and residence > _FALLEN * state.residence_s
        ):
            base = residence
        knee_samples = _KNEE_MEMORY if residence > _NO_QUEUEING * base else max(0, state.knee_samples - 1)
        after = replace(state, base_s=base, window=in_force, residence_s=residence, knee_samples=knee_samples)
        wanted = rate * base * (1.0 + self.headroom) + 1.0
        parts, saturated = {"knee": rate * base, "spare": wanted - rate * base}, 0
        code, reason = ReasonCode.UNSPECIFIED, ""
        growth = 2.0
        if disturbances.depth is not None and not knee_samples:
            demand = (disturbances.publish_per_s or rate) + disturbances.depth / max(sample.dt, 1e-3)
            ahead = demand * base * (1.0 + self.headroom) + 1.0
            if ahead > wanted:
                wanted, growth = ahead, _MOST_GROWTH
                parts["ff"] = (demand - rate) * base
        if not disturbances.is_full:
            wanted = max(in_force, wanted)
            code, reason = ReasonCode.STARVED, "the queue had no more than this"
        handling = disturbances.handling_p95_s
        if self.p95_s is not None and handling is not None and handling > _LATENCY_MARGIN * self.p95_s:
            wanted = min(wanted, in_force * clamp(_LATENCY_MARGIN * self.p95_s / handling, 0.5, 1.0))
            saturated = -1 if base > self.p95_s else 0
            code = ReasonCode.UNREACHABLE if saturated else ReasonCode.LATENCY_LIMITED
            reason = f"handling takes {handling:.3g} s for 95 % of messages, of the {self.p95_s:.3g} s allowed" + (
                f"; alone it takes {base:.3g} s: that is the least that is reachable" if saturated else ""
            )
        command = clamp(wanted, 0.5 * in_force, max(growth * in_force, 1.0))
        if not math.isfinite(command):
            return state, HOLD_NOT_FINITE
        return replace(after, command=command), Action(command, parts, saturated, reason, code)
