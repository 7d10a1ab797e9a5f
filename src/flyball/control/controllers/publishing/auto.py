"""Auto: a publisher's window near the knee, set by delivery rate and round trip."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from flyball.control.controllers.common import check_between, check_whole, hold_unusable
from flyball.control.controllers.publishing.signals import Batching, PublisherMeasurement, batching, measurement_of
from flyball.control.filters import Timed, windowed_max, windowed_min
from flyball.control.limits import clamp
from flyball.control.step import Action, ReasonCode, Sample, Value, hold
from flyball.errors import InvalidValue

_LARGEST_RATE = 1e9
_SHORTEST_TRIP_S = 1e-6
_TRIPS_OF_RATE = 20.0
"""Round trips over which the greatest delivery rate counts."""
_LEAST_RATE_SPAN_S = 1.0
_TRIPS_A_ROUND = 2.5
_SHORTEST_ROUND_S = 0.05
"""Brokers confirm in groups: within this time some message meets an empty queue, if there is one."""
_SHORTEST_QUEUE_S = 1e-5
"""Without any queue the formula gives an infinite window."""
_STEEPNESS = 4
"""The window falls with this power of the queue: a slow broker's queue stays short, a fast one is kept busy."""
_BATCH_S = 0.012
"""What the broker takes in within this time makes a batch: a message in it waits no longer for those behind it."""
_BATCHES_A_WINDOW = 8
_SMALL_BATCH = 8
"""Batches need not be smaller than this, if the window holds several: the rate may be the application's. Before
there is any rate, they are as large as the window allows."""
_GROWTH = 1.1
"""Windows grow by this part and half a share in a round: those of few messages catch up with those of many."""
_FAR_TOO_LONG = 2.0
"""Queues this many times as long as they may be are not reduced in steps, but at once."""
_STARTED = 512.0
"""Up to this window doubling waits for the first confirm only, where the path is long: the load does not wait."""
_LONG_TRIP_S = 0.05
_MOST_TRIPS = 256
"""Of a round, over a long path; the newest."""
_TRIPS_PRESSED = 5.0
_LONGEST_DRAIN_TRIPS = 4.0
_SHORTEST_DRAIN_S = 0.03
"""Long enough for publishers with unlike rounds to drain at the same time."""

Why: TypeAlias = tuple[ReasonCode, str]
_MEASURING: Why = (ReasonCode.MEASURING, "measuring")


@dataclass(frozen=True, slots=True)
class AutoState:
    """What `auto` remembers. The current round began at `began_s`, when the window was last set."""

    window: float
    trips: Timed = ()
    rates: Timed = ()
    measured_s: float | None = None
    """When the last drain began, or the first sample came."""
    began_s: float | None = None
    """None: the round begins with the next sample."""
    round_trip_s: float | None = None
    """Shortest round trip of what was sent in this round; None: nothing has come back yet."""
    round_trips: tuple[float, ...] = ()
    """All of them, over a long path whose knee is found: the shortest of many is shorter than that of few."""
    limited: bool = False
    """In this round the window held messages back."""
    limited_since_s: float | None = field(default=None, metadata={"stored_as": "pressed_s"})
    """Since when the window has held messages back without a break."""
    peak: float = 0.0
    """Most messages on the way in this round."""
    counting_s: float | None = None
    """Since when `counted` messages have been confirmed, for the delivery rate; None: from the next sample on."""
    counted: float = 0.0
    count_limited: bool = field(default=False, metadata={"stored_as": "held"})
    """Since then the window held messages back."""
    doubling: bool = True
    """Still looking for the knee by doubling."""
    drain_until_s: float | None = None
    """Draining, until something comes back that was sent after this; None: not draining."""
    unavailable_s: float | None = field(default=None, metadata={"stored_as": "troubled_s"})


@dataclass(frozen=True, slots=True)
class Auto:
    """Sends at once, and lets batches form only while the broker is the bottleneck; finds the knee by itself.

    Little's law says how many messages are on the way without any queue at the broker: the knee = delivery
    rate × minimal round trip. Fewer leave the broker idle, more only wait there. Both are measured: the rate
    over whole rounds, as the greatest of the last 20 round trips (while the window was the brake: a rate that
    the application chose says nothing about the broker), the round trip as the least of the last `forget_s`.

    Formula, every 2.5 minimal round trips and at least 50 ms. q is the time that messages queue, by which the
    shortest round trip r of that while exceeds the minimal one (over paths of 50 ms and more the first quartile,
    once the knee is found: the shortest of many is shorter than that of few); d = max(queue_s, queue_share ·
    minimal round trip) is how long a window of `share` messages may queue. Wanted is W* = share·(d/q)⁴:

    * W > W*: W falls to W·(W*/W)^step, at most by the part `cut`, or by what takes a queue beyond 2d back to d;
      a window that the application does not use falls from what was used;
    * else, if the window was the brake: W doubles until it has fallen once, as soon as W* is seen to be
      larger; after that it rises by step·(W* − W), at most by a tenth and half a share;
    * else the application sends less than W allows, and W stays;
    * unavailable (blocked, refused, silent): W halves at once, and looks for the knee anew when confirms come.

    The first round begins before anything is sent: the first confirm already doubles a window that is too small.

    The step is gain·q/(q + 4·r). If all who share the broker change W by the same part, the queue changes by
    r times that part, and W* by −4·r/q times: for gain 1 that is Newton's step.

    Publishers that share a broker see the same q, and at the same q all want the same window: that makes them
    fair. A fast broker that confirms in groups gets hundreds of messages at a short q, which keep it busy
    between two groups; the fourth power keeps q near d at slow ones. For that all must know the true minimal
    round trip, and one that joins a busy broker has never seen it: so at every multiple of `probe_s` those
    whom the window holds back let their messages drain for a moment. The times given to this controller therefore
    count from 1970 (clocks that disagree make a drain less telling, nothing else).

    A batch is what the broker takes in within 12 ms, so that its first message does not wait for its last.

    >>> auto = Auto(start_window=40)
    >>> state = auto.initial((1.0, 1.0, 0.0, 1.0))
    >>> now = PublisherMeasurement(pending=50.0, transfer_s=0.01, confirmed=40.0, in_flight=40.0, limited=1.0)
    >>> for k in range(3):
    ...     state, action = auto.step(state, Sample(0.05 * k, 0.05, 0.0, tuple(now)))
    ...     print(action.command.window, round(action.parts["knee"], 3), action.reason)
    40.0 0.0 measuring
    80.0 8.0 the broker keeps up: doubled
    160.0 8.0 the broker keeps up: doubled

    Source: ours; the estimators are those of congestion control by bottleneck bandwidth and round trip, the
    sharing is that of windows that follow the queueing delay.
    """

    queue_s: float = field(default=0.028, metadata={"help": "time that messages may queue at the broker"})
    queue_share: float = field(
        default=0.35, metadata={"help": "the same as a part of the minimal round trip; the larger one counts"}
    )
    share: float = field(default=14.0, metadata={"help": "window at which messages queue for just that time"})
    gain: float = field(default=1.4, metadata={"help": "part of Newton's step that is made; below 2"})
    cut: float = field(default=0.5, metadata={"help": "greatest part of the window given up in one round trip"})
    start_window: int = field(default=128, metadata={"help": "window before anything is known"})
    max_window: int = field(default=20_000, metadata={"help": "largest window"})
    forget_s: float = field(
        default=15.0, metadata={"help": "how long a minimal round trip counts that was not measured anew"}
    )
    probe_s: float = field(default=5.0, metadata={"help": "measure the minimal round trip anew so often"})

    def __post_init__(self) -> None:
        check_between(self, "queue_s", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "queue_share", 0.0, 10.0)
        check_between(self, "share", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "gain", 0.0, 2.0, low_open=True, high_open=True)
        check_between(self, "cut", 0.0, 1.0, low_open=True, high_open=True)
        check_whole(self, "start_window", 1)
        check_whole(self, "max_window", 1)
        check_between(self, "probe_s", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "forget_s", 0.0, math.inf, low_open=True, high_open=True)
        if self.forget_s < 2.0 * self.probe_s:
            raise InvalidValue(
                f"Auto.forget_s must be at least twice probe_s = {self.probe_s:g}, got {self.forget_s:g}: "
                "a round trip has to be measured anew before it is forgotten"
            )

    def initial(self, command: Value) -> AutoState:
        known = batching(command).window
        return AutoState(clamp(max(known, float(self.start_window)), 1.0, float(self.max_window)))

    def step(self, state: AutoState, sample: Sample) -> tuple[AutoState, Action]:
        measurement = measurement_of(sample)
        if measurement is None or not math.isfinite(sample.time):
            return state, (
                hold_unusable(sample)
                if measurement is None
                else hold("the time is not finite: held", ReasonCode.HELD_INVALID_SAMPLE)
            )
        if measurement.unavailable > 0.0:
            state, why = self._back_off(state, sample.time)
        elif measurement.transfer_s < 0.0:
            if state.began_s is None:
                # What leaves before the first confirm is sent under this window as well.
                state = replace(_new_round(state, sample.time), measured_s=sample.time)
            why = (ReasonCode.UNCHANGED, "nothing was confirmed")
        else:
            state, why = self._confirmed(state, measurement, sample.time)
        return state, self._action(state, why)

    def _back_off(self, state: AutoState, now_s: float) -> tuple[AutoState, Why]:
        trip_s = state.trips[0][1] if state.trips else 0.0
        if state.unavailable_s is not None and abs(now_s - state.unavailable_s) < trip_s:
            return state, (ReasonCode.BACKED_OFF, "the broker is unavailable: already halved")
        window = max(1.0, state.window / 2.0)
        state = replace(state, window=window, unavailable_s=now_s, doubling=True, drain_until_s=None)
        return _new_round(state, now_s), (ReasonCode.BACKED_OFF, "the broker is unavailable: halved")

    def _confirmed(
        self, state: AutoState, measurement: PublisherMeasurement, now_s: float
    ) -> tuple[AutoState, Why]:
        trip_s = max(_SHORTEST_TRIP_S, measurement.transfer_s)
        state = _count(
            replace(state, trips=windowed_min(state.trips, now_s, trip_s, self.forget_s)), measurement, now_s
        )
        limited_since_s = (
            None
            if measurement.limited <= 0.0
            else now_s
            if state.limited_since_s is None
            else state.limited_since_s
        )
        state = replace(state, limited_since_s=limited_since_s)
        shortest_s = state.trips[0][1]
        began_s, measured_s = state.began_s, state.measured_s
        if began_s is None or measured_s is None or now_s < began_s:
            state = replace(_new_round(state, now_s), measured_s=now_s)
            return replace(state, limited=measurement.limited > 0.0), _MEASURING
        state = replace(
            state, limited=state.limited or measurement.limited > 0.0, peak=max(state.peak, measurement.in_flight)
        )
        if state.drain_until_s is not None:
            return self._draining(state, now_s, trip_s)
        if self._may_drain(state, measurement, now_s):
            # Everything that is on the way now has come back one present round trip from now; after a stall that
            # trip says nothing about the next.
            until_s = now_s + max(min(trip_s, _LONGEST_DRAIN_TRIPS * shortest_s), _SHORTEST_DRAIN_S)
            # Right after it the broker is empty for everybody: no time to double.
            state = replace(state, measured_s=now_s, drain_until_s=until_s, doubling=False)
            return _new_round(state, now_s), (ReasonCode.DRAINING, "measuring the round trip anew: draining")
        # Only what was sent under the present window tells what that window does, and not what left at once when
        # it was raised: such a burst queues behind itself, once. At the start of a long path time is too short.
        starting = state.doubling and state.window < _STARTED and state.unavailable_s is None
        starting = starting and shortest_s >= _LONG_TRIP_S
        if now_s - trip_s < began_s + (0.0 if starting else shortest_s) - 1e-9:
            return state, _MEASURING
        round_trip_s = trip_s if state.round_trip_s is None else min(trip_s, state.round_trip_s)
        state = replace(state, round_trip_s=round_trip_s)
        if shortest_s >= _LONG_TRIP_S and not state.doubling:
            state = replace(state, round_trips=(*state.round_trips, trip_s)[-_MOST_TRIPS:])
        # The shortest trip of a round only falls: where there is no queue by now, the rest of it changes nothing.
        clear = state.doubling and state.limited and self._target(state) >= state.window
        if not clear and now_s - began_s < _round_s(shortest_s):
            return state, _MEASURING
        if state.round_trips:
            state = replace(state, round_trip_s=sorted(state.round_trips)[len(state.round_trips) // 4])
        return self._end_of_round(state, now_s)

    def _target(self, state: AutoState) -> float:
        """The window for a queue as long as this round's: all who see the same queue want the same."""
        return self.share * (self._allowed_s(state) / _queued_s(state)) ** _STEEPNESS

    def _allowed_s(self, state: AutoState) -> float:
        return max(self.queue_s, self.queue_share * state.trips[0][1])

    def _end_of_round(self, state: AutoState, now_s: float) -> tuple[AutoState, Why]:
        window = state.window if state.limited else min(state.window, max(state.peak, self.share))
        target = self._target(state)
        if target < window:
            # By ratio, so that who has many times too much is soon down.
            lowered = max(window * (target / window) ** self._step(state), self._least(state, window))
            state = replace(state, window=max(1.0, lowered), doubling=False)
            return _new_round(state, now_s), (ReasonCode.LOWERED, "messages queue at the broker: lowered")
        if not state.limited:
            return _new_round(state, now_s), (
                ReasonCode.APPLICATION_LIMITED,
                "the application sends less than the window allows: unchanged",
            )
        if state.doubling:
            grown, reason = 2.0 * state.window, "the broker keeps up: doubled"
        else:
            grown = min(window + self._step(state) * (target - window), _GROWTH * window + self.share / 2.0)
            reason = "the broker keeps up: raised"
        state = replace(state, window=min(grown, float(self.max_window)))
        return _new_round(state, now_s), (ReasonCode.RAISED, reason)

    def _least(self, state: AutoState, window: float) -> float:
        """What is left of a window at least when it is lowered.

        If all who share the broker keep the part that makes their queue as long as it may be, a queue many times
        that long is gone in one round, not in ten. Small windows did not make it and are exempt.
        """
        shortest_s, allowed_s, queued_s = state.trips[0][1], self._allowed_s(state), _queued_s(state)
        gently = (1.0 - self.cut) * window
        if queued_s <= _FAR_TOO_LONG * allowed_s:
            return gently
        to_allowed = (shortest_s + allowed_s) / (shortest_s + queued_s)
        return min(gently, max(to_allowed * window, self.share))

    def _step(self, state: AutoState) -> float:
        """The part of the way to the target window that is made at once: Newton's step for the case that all who
        share the broker make it, for the queue then changes by its part of the round trip for each of them."""
        queued_s = _queued_s(state)
        return self.gain * queued_s / (queued_s + _STEEPNESS * (queued_s + state.trips[0][1]))

    def _may_drain(self, state: AutoState, measurement: PublisherMeasurement, now_s: float) -> bool:
        """Is it time to measure the round trip anew, together with all who share the broker?

        Whoever comes late would measure the others' messages. Who is held back for a moment only, at the start or
        by a burst, knows the round trip anyway, and would wait for nothing.
        """
        late_s = now_s - self.probe_s * math.floor(now_s / self.probe_s)
        together = late_s <= max(2.0 * measurement.transfer_s, _SHORTEST_ROUND_S)
        due = state.measured_s is not None and now_s - state.measured_s > late_s
        lasting = (
            state.limited_since_s is not None
            and now_s - state.limited_since_s >= _TRIPS_PRESSED * state.trips[0][1]
        )
        return together and due and lasting and measurement.pending > 0.0

    def _draining(self, state: AutoState, now_s: float, trip_s: float) -> tuple[AutoState, Why]:
        assert state.drain_until_s is not None
        # One trip may be long by chance: where trips are short there are several.
        if now_s - trip_s < state.drain_until_s or now_s < state.drain_until_s + _SHORTEST_DRAIN_S:
            return state, (ReasonCode.DRAINING, "draining")
        return _new_round(replace(state, drain_until_s=None), now_s), (ReasonCode.MEASURING, "drained: going on")

    def _knee(self, state: AutoState) -> float:
        return state.rates[0][1] * state.trips[0][1] if state.rates and state.trips else 0.0

    def _action(self, state: AutoState, why: Why) -> Action:
        window = state.window if state.drain_until_s is None else 1.0
        window = math.floor(clamp(window, 1.0, float(self.max_window)))
        parts = {
            "knee": self._knee(state),
            "rate": state.rates[0][1] if state.rates else 0.0,
            "round_trip_s": state.trips[0][1] if state.trips else 0.0,
        }
        small = _SMALL_BATCH if state.rates else math.inf
        batch = max(parts["rate"] * _BATCH_S, min(window / _BATCHES_A_WINDOW, small))
        command = Batching(1.0, float(math.ceil(min(batch, window / 2))), 0.0, float(window))
        code, reason = why
        return Action(command, parts, int(window >= self.max_window), reason, code)


def _new_round(state: AutoState, now_s: float) -> AutoState:
    return replace(state, began_s=now_s, round_trip_s=None, round_trips=(), limited=False, peak=0.0)


def _queued_s(state: AutoState) -> float:
    """By how much the shortest round trip of this round exceeds the minimal one."""
    shortest_s = state.trips[0][1]
    return max((state.round_trip_s or shortest_s) - shortest_s, _SHORTEST_QUEUE_S)


def _round_s(shortest_s: float) -> float:
    return max(_TRIPS_A_ROUND * shortest_s, _SHORTEST_ROUND_S)


def _count(state: AutoState, measurement: PublisherMeasurement, now_s: float) -> AutoState:
    """The delivery rate, over whole rounds: confirms come in groups, and one group says nothing about the rate."""
    shortest_s, since_s = state.trips[0][1], state.counting_s
    if since_s is None or now_s < since_s:
        return replace(state, counting_s=now_s, counted=0.0, count_limited=False)
    counted, count_limited = (
        state.counted + max(0.0, measurement.confirmed),
        state.count_limited or measurement.limited > 0.0,
    )
    if now_s - since_s < _round_s(shortest_s):
        return replace(state, counted=counted, count_limited=count_limited)
    rate, rates = min(counted / (now_s - since_s), _LARGEST_RATE), state.rates
    if count_limited or not rates or rate > rates[0][1]:
        rates = windowed_max(rates, now_s, rate, max(_LEAST_RATE_SPAN_S, _TRIPS_OF_RATE * shortest_s))
    return replace(state, rates=rates, counting_s=now_s, counted=0.0, count_limited=False)
