"""The controller for capacity and latency: as many in flight as the handlers can take, and no more.

Up to the handlers' capacity the rate grows with the window; beyond it messages wait for each other, and only their
time grows. The window is to be at that knee and a little (`headroom`) beyond it, so that no handler is ever idle.

How many wait shows in the *quickest* messages. Handlers may be irregular: of those whose times are log-normal a
few take longer than all others together, and no mean over a second says anything. But a message that waits does so
whatever it takes itself, so the lowest tenth of all times grows by just that wait. With `base` the lowest tenth
while none waits, Little's law gives how many wait, and so where the knee is:

    waiting = rate · (lowest tenth − base),    knee = window − waiting,    window(k+1) = knee · (1 + headroom) + 1

While none waits and the window is full, the knee is further up: the window doubles, and once the knee was met
grows by a quarter; the queue tells how far that is worth it, (publish rate + depth / sample) · residence time. So
feed-forward meets a peak of the publishers. Each time the messages in flight have to have been replaced first.

`base` falls with what is measured. It rises only by a test, for handlers that became slower look like waiting:
where the window has become narrower and the lowest tenth has not followed by what Little's law says, none waited.
Each step down is such a test; where there was none for a while, one is made, and costs nothing while the headroom
is there. Upwards the test is the rate: where three times the window did not bring a quarter of the rate that it
should, more does not help, whatever the times say, and the window grows no further for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from flyball.consumer.policy.goals import ConsumerDisturbances, disturbances_of
from flyball.control.controllers.common import (
    HOLD_NOT_FINITE,
    applied_or,
    as_scalar,
    check_between,
    hold_unusable,
    scalar_error,
)
from flyball.control.filters import ewma
from flyball.control.step import Action, ReasonCode, Sample, Value, hold

_MEMORY = 40.0  # messages after which an older one counts for a third
_LEAST = 20.0  # messages, and
_LEAST_SAMPLES = 3  # samples (a metric may be two samples late) under a window before it is made narrower
_FEW = 0.1  # part of the window up to which waiting messages are noise
_SLOW_START, _FEED_FORWARD, _GROWTH = 2.0, 4.0, 1.25  # most growth of the window in a sample
_LEAST_SHRINK, _MOST_SHRINK = (
    0.95,
    0.7,
)  # a narrower window is worth a move from the first on, and at most the second
_TEST = 1.2  # a window before that was so much wider, or more, is a test of whether messages waited
_FOLLOWED = 0.4  # part of the predicted fall that shows that they did
_PROBE_SAMPLES, _PROBE = 40, 0.8  # samples without a test before one is made, and its window
_WIDER, _RESPONSE = 3.0, 0.25  # growth of the window that the rate must have followed, by this part
_LEAST_RESPONSE = 30.0  # messages by which that is judged
_STALLED_SAMPLES = 60  # for which the window then does not grow
_KNEE_MEMORY = 30  # samples for which the knee counts as near
_IN_CLIENT = (
    1.2  # latency, as a multiple of the time in the client, up to which messages do not wait at the broker
)
_LATENCY_MARGIN = 0.9  # part of the allowed latency that is used
_LATENCY_SHRINK = (
    0.25  # most shrink while the latency is exceeded: what waits too long is known, and it is too late
)


@dataclass(frozen=True, slots=True)
class KneeState:
    """`low_s` and `flow` are the lowest tenth and the rate under the window in force, since `samples` samples, in
    which `turned` messages were handled; the first of them, as many as were in flight, show the window before.
    `wider` is the window before a step down, with its lowest tenth."""

    command: float
    base_s: float | None = None
    low_s: float | None = None
    flow: float | None = None
    window: float | None = None
    samples: int = 0
    turned: float = 0.0
    settled: bool = False
    """Whether `low_s` shows the window in force alone."""
    wider: tuple[float, float] | None = None
    ref: tuple[float, float] | None = None
    """Window and rate from which growth is counted."""
    stalled: int = 0
    """For how many more samples the window does not grow, since the rate did not follow it."""
    doubted: bool = False
    """Whether the rate has not followed the window yet."""
    met: bool = False
    """Whether the knee was met yet."""
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
    (800, 11.2)
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
        measured = disturbances_of(sample)
        rate, residence_s = measured.rate_per_s, measured.residence_s
        window = applied_or(sample, state.command)
        if scalar_error(sample) is None:
            return state, hold_unusable(sample)
        finished = rate if measured.done_per_s is None or rate is None else min(rate, measured.done_per_s)
        if finished is None or residence_s is None or residence_s <= 0.0 or finished <= 0.0:
            return state, hold("no message was handled since the last sample: held", ReasonCode.HELD_NO_ESTIMATE)
        quickest_s = residence_s if measured.handling_low_s is None else measured.handling_low_s
        after = _observe(
            state, window, quickest_s, finished, finished * max(sample.dt, 0.0), full=measured.is_full
        )
        low_s, base_s, flow = after.low_s, after.base_s, after.flow
        assert low_s is not None
        assert base_s is not None
        assert flow is not None
        wait_s = max(0.0, low_s - base_s)
        waiting = min(flow * wait_s, window)
        knee = window - waiting
        is_waiting = waiting > _FEW * window + 0.5
        if is_waiting:
            after = replace(after, knee_samples=_KNEE_MEMORY, met=True)
        wanted = self._wanted(after, window, knee, is_waiting, measured, residence_s, sample.dt)
        parts = {"knee": knee, "spare": wanted - knee}
        code, reason = ReasonCode.UNSPECIFIED, ""
        if not measured.is_full:
            wanted = max(window, wanted)
            code, reason = ReasonCode.STARVED, "the queue had no more than this"
        saturated, most_shrink = 0, _MOST_SHRINK
        if self.p95_s is not None:
            alone_s = max(0.0, (measured.handling_p95_s or 0.0) - wait_s)
            spare_s = _LATENCY_MARGIN * self.p95_s - alone_s
            in_client = measured.latency_p95_s is None or measured.latency_p95_s <= _IN_CLIENT * (alone_s + wait_s)
            if is_waiting and in_client and wait_s > spare_s > 0.0:
                wanted, most_shrink = min(wanted, knee + max(1.0, flow * spare_s)), _LATENCY_SHRINK
                code, reason = ReasonCode.LATENCY_LIMITED, f"in the client {spare_s:.3g} s may pass, no more"
            unreachable = self._explain(measured, alone_s, is_waiting, flow)
            if unreachable:
                code, reason, saturated = ReasonCode.UNREACHABLE, unreachable, 1
        command = self._move(after, window, wanted, most_shrink)
        if not math.isfinite(command):
            return state, HOLD_NOT_FINITE
        if command != window:
            after = replace(
                after,
                samples=0,
                turned=0.0,
                settled=False,
                flow=None,
                wider=(window, low_s) if command < window else None,
            )
        return replace(after, command=command, window=command), Action(command, parts, saturated, reason, code)

    def _wanted(
        self,
        state: KneeState,
        window: float,
        knee: float,
        is_waiting: bool,
        measured: ConsumerDisturbances,
        residence_s: float,
        dt: float,
    ) -> float:
        """The window that is wanted, as far from the one in force as one step goes."""
        spare = 1.0 + self.headroom
        if is_waiting:
            wanted = min(knee * spare + 1.0, _GROWTH * window + 1.0)
            return _PROBE * window if state.samples >= _PROBE_SAMPLES and wanted >= _PROBE * window else wanted
        if state.knee_samples or (not measured.is_full and measured.depth is None):
            return _GROWTH * window + 1.0 if measured.is_full else window
        wanted = _GROWTH * window + 1.0 if state.met else _SLOW_START * window
        most = max(wanted, 1.0)
        if measured.depth is not None and state.flow is not None:
            demand = (measured.publish_per_s or state.flow) + measured.depth / max(dt, 1e-3)
            least = _GROWTH * window if measured.is_full else window
            most, wanted = max(_FEED_FORWARD * window, 1.0), max(demand * residence_s * spare + 1.0, least)
        return min(wanted, most)

    @staticmethod
    def _move(state: KneeState, window: float, wanted: float, most_shrink: float) -> float:
        if wanted > window:
            ready = state.turned >= window and not state.stalled and not state.doubted
            return wanted if ready else window
        if wanted > _LEAST_SHRINK * window or not _is_known(state.samples, state.turned, window):
            return window
        return max(wanted, most_shrink * window)

    def _explain(self, measured: ConsumerDisturbances, alone_s: float, is_waiting: bool, flow: float) -> str:
        """Why no window holds the latency; empty: one may."""
        assert self.p95_s is not None
        if alone_s > self.p95_s:
            return (
                f"95 % of messages take up to {alone_s:.3g} s by themselves, of the {self.p95_s:.3g} s allowed: "
                "no window makes that less"
            )
        latency_s = measured.latency_p95_s
        if is_waiting and measured.is_full and latency_s is not None and latency_s > self.p95_s:
            return (
                f"95 % of messages are done after {latency_s:.3g} s, of the {self.p95_s:.3g} s allowed: the "
                f"handlers take about {flow:.3g}/s, and more than that is waiting"
            )
        return ""


def _is_known(samples: int, turned: float, window: float) -> bool:
    """Whether enough messages have passed under this window alone to make it narrower."""
    return samples >= _LEAST_SAMPLES and turned >= window + _LEAST


def _observe(state: KneeState, window: float, low_s: float, rate: float, count: float, *, full: bool) -> KneeState:
    """The state with what a sample showed of the window in force, in which `count` messages were handled."""
    keep = math.exp(-count / _MEMORY)
    if state.window is None or state.window != window:  # somebody else has set the window
        state = replace(state, settled=False, flow=None, samples=0, turned=0.0, wider=None)
    low = ewma(state.low_s if state.settled else None, low_s, keep)
    flow = ewma(state.flow, rate, keep)
    base = low_s if state.base_s is None else state.base_s
    if low < base:
        base = ewma(base, low, keep)
    samples, turned, wider, ref = state.samples + 1, state.turned + count, state.wider, state.ref
    stalled, doubted = max(0, state.stalled - 1), False
    is_enough = _is_known(samples, turned, window)
    if is_enough and wider is not None:
        if wider[0] >= _TEST * window and wider[1] - low < _FOLLOWED * (wider[0] - window) / flow:
            base = max(base, low)
        wider = None
    if not full:
        ref = None
    elif ref is None or window < ref[0] or samples >= _KNEE_MEMORY // 3:
        ref = (window, flow) if turned >= _LEAST_RESPONSE else None
    elif window >= _WIDER * ref[0]:
        if flow >= ref[1] * (1.0 + _RESPONSE * (window / ref[0] - 1.0)):
            ref = (window, flow)
        elif is_enough and turned >= _LEAST_RESPONSE:
            ref, stalled = (window, flow), _STALLED_SAMPLES
        else:
            doubted = True
    return replace(
        state,
        base_s=base,
        low_s=low,
        flow=flow,
        window=window,
        samples=samples,
        turned=turned,
        settled=state.turned >= window,
        wider=wider,
        ref=ref,
        stalled=stalled,
        doubted=doubted,
        knee_samples=max(0, state.knee_samples - 1),
    )
