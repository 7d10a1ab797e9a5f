"""Auto: a publisher's window held near the knee, by delivery rate and round trip."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from flyball.control.controllers.common import check_between, check_whole, why_unusable
from flyball.control.controllers.publishing import Batching, Measured, batching, measured
from flyball.control.filters import Timed, windowed_max, windowed_min
from flyball.control.limits import clamp
from flyball.control.step import Action, Sample, Value, hold
from flyball.errors import InvalidValue

_LARGEST_RATE = 1e9
_SHORTEST_TRIP_S = 1e-6
_TRIPS_OF_RATE = 20.0
"""Round trips over which the greatest delivery rate counts."""
_LEAST_RATE_SPAN_S = 1.0
_TRIPS_BETWEEN_DRAINS = 40.0
_ABOUT = 0.1
"""Part of the allowed queueing time by which a round trip may exceed the shortest and still confirm it."""


@dataclass(frozen=True, slots=True)
class AutoState:
    """What `auto` remembers. The current round began at `began_s`, when the window was last set."""

    window: float
    trips: Timed = ()
    rates: Timed = ()
    fresh_s: float = 0.0
    """When a round trip was last about as short as the shortest."""
    began_s: float | None = None
    """None: the round begins with the next sample."""
    round_trip_s: float | None = None
    """Shortest round trip of this round; None: nothing that was sent in it has come back yet."""
    limited: bool = False
    """In this round the window held messages back."""
    doubling: bool = True
    """Still looking for the knee by doubling."""
    step: float = 1.0
    drained_s: float | None = None
    """When draining began; None: not draining."""
    troubled_s: float | None = None


@dataclass(frozen=True, slots=True)
class Auto:
    """Sends at once, and lets batches form only while the broker is the bottleneck; finds the knee by itself.

    Little's law says how many messages are on the way without any queue at the broker: the knee = delivery
    rate × minimal round trip. Fewer leave the broker idle, more only wait there. Both are measured: the rate as
    the greatest of the last 20 round trips (while the window was the brake: a rate that the application chose
    says nothing about the broker), the round trip as the least of the last `forget_s`.

    Law, once a round trip, where q = round trip − minimal round trip is the time that a message queues and
    d = max(queue_s, queue_share · minimal round trip) the time that it may, so that a broker that confirms in
    groups is never idle:

    * q > d, and the window was the brake: to the knee, at least by `cut` and at most by half;
    * q ≤ d, and the window was the brake: at first double, after the first cut add a step, which doubles
      with every round that stays below d/2 and starts again from 1 with every cut;
    * the application was the brake: leave the window as it is;
    * trouble (blocked, refused, silent): halve at once; when confirms come again, look for the knee anew.

    Publishers that share a broker see the same queue, cut together and add the same steps, which evens out
    their windows as AIMD does. For that all must know the true minimal round trip, and one that joins a busy
    broker has never seen it: so whoever has seen no shorter round trip for `probe_s` lets its own messages
    drain for a moment. As a drain shortens the round trips of all, all soon drain at the same time.

    Batches are at most a quarter of the window, so that several are on the way and the next one is never far.

    >>> auto = Auto(start_window=8)
    >>> state = auto.initial((1.0, 1.0, 0.0, 1.0))
    >>> seen = Measured(pending=50.0, transfer_s=0.01, confirmed=2.0, in_flight=8.0, delivered=8.0, limited=1.0)
    >>> for k in range(3):
    ...     state, action = auto.step(state, Sample(0.02 * k, 0.02, 0.0, tuple(seen)))
    ...     print(action.command.window, round(action.parts["knee"], 3), action.reason)
    8.0 8.0 measuring
    16.0 8.0 the broker keeps up: doubled
    32.0 8.0 the broker keeps up: doubled

    Source: ours; the estimators are those of congestion control by bottleneck bandwidth and round trip, the
    sharing is AIMD's.
    """

    queue_s: float = field(default=0.008, metadata={"help": "time that messages may queue at the broker"})
    queue_share: float = field(
        default=0.25, metadata={"help": "the same as a part of the minimal round trip; the larger one counts"}
    )
    cut: float = field(default=0.8, metadata={"help": "factor of the window when the queue is too long"})
    start_window: int = field(default=64, metadata={"help": "window before anything is known"})
    max_window: int = field(default=20_000, metadata={"help": "largest window"})
    forget_s: float = field(default=10.0, metadata={"help": "how long a minimal round trip counts"})
    probe_s: float = field(default=4.0, metadata={"help": "drain after so long without a shorter round trip"})

    def __post_init__(self) -> None:
        check_between(self, "queue_s", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "queue_share", 0.0, 10.0)
        check_between(self, "cut", 0.5, 1.0, high_open=True)
        check_whole(self, "start_window", 1)
        check_whole(self, "max_window", 1)
        check_between(self, "probe_s", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "forget_s", 0.0, math.inf, low_open=True, high_open=True)
        if self.forget_s < 2.0 * self.probe_s:
            raise InvalidValue(
                f"Auto.forget_s is at least twice probe_s = {self.probe_s:g}, got {self.forget_s:g}: "
                "a round trip has to be measured anew before it is forgotten"
            )

    def initial(self, command: Value) -> AutoState:
        known = batching(command).window
        return AutoState(clamp(max(known, float(self.start_window)), 1.0, float(self.max_window)))

    def step(self, state: AutoState, sample: Sample) -> tuple[AutoState, Action]:
        seen = measured(sample)
        if seen is None or not math.isfinite(sample.time):
            return state, hold(why_unusable(sample) if seen is None else "the time is not finite: held")
        if seen.trouble > 0.0:
            state, reason = self._back_off(state, sample.time)
        elif seen.transfer_s < 0.0:
            reason = "nothing was confirmed"
        else:
            state, reason = self._confirmed(state, seen, sample.time)
        return state, self._action(state, reason)

    def _back_off(self, state: AutoState, now_s: float) -> tuple[AutoState, str]:
        trip_s = state.trips[0][1] if state.trips else 0.0
        if state.troubled_s is not None and abs(now_s - state.troubled_s) < trip_s:
            return state, "the broker is in trouble: already halved"
        window = max(1.0, state.window / 2.0)
        state = replace(state, window=window, troubled_s=now_s, doubling=True, step=1.0, drained_s=None)
        return _new_round(state, now_s), "the broker is in trouble: halved"

    def _confirmed(self, state: AutoState, seen: Measured, now_s: float) -> tuple[AutoState, str]:
        trip_s = max(_SHORTEST_TRIP_S, seen.transfer_s)
        trips = windowed_min(state.trips, now_s, trip_s, self.forget_s)
        shortest_s = trips[0][1]
        rate = min(max(0.0, seen.delivered) / trip_s, _LARGEST_RATE)
        rates = state.rates
        if seen.limited > 0.0 or not rates or rate > rates[0][1]:
            rates = windowed_max(rates, now_s, rate, max(_LEAST_RATE_SPAN_S, _TRIPS_OF_RATE * shortest_s))
        fresh = trip_s <= shortest_s + _ABOUT * self._allowed_s(shortest_s)
        state = replace(state, trips=trips, rates=rates, fresh_s=now_s if fresh else state.fresh_s)
        began_s = state.began_s
        if began_s is None or now_s < began_s:
            return replace(_new_round(state, now_s), limited=seen.limited > 0.0), "measuring"
        state = replace(state, limited=state.limited or seen.limited > 0.0)
        # Only what was sent under the present window tells what that window does.
        if now_s - trip_s < began_s - 1e-9:
            return state, "measuring"
        round_trip_s = min(trip_s, state.round_trip_s or trip_s)
        state = replace(state, round_trip_s=round_trip_s)
        if state.drained_s is not None:
            return self._draining(state, now_s, trip_s)
        if now_s - began_s < 1.5 * round_trip_s:
            return state, "measuring"
        return self._end_of_round(state, now_s, round_trip_s)

    def _end_of_round(self, state: AutoState, now_s: float, round_trip_s: float) -> tuple[AutoState, str]:
        shortest_s = state.trips[0][1]
        queued_s = round_trip_s - shortest_s
        allowed_s = self._allowed_s(shortest_s)
        if not state.limited:
            return _new_round(state, now_s), "the application is the brake: kept"
        if now_s - state.fresh_s > max(self.probe_s, _TRIPS_BETWEEN_DRAINS * shortest_s):
            return _new_round(replace(state, drained_s=now_s), now_s), "no short round trip of late: draining"
        if queued_s > allowed_s:
            window = clamp(self._knee(state), 0.5 * state.window, self.cut * state.window)
            state = replace(state, window=max(1.0, window), doubling=False, step=1.0)
            return _new_round(state, now_s), "messages queue at the broker: cut"
        if state.doubling:
            window, step, reason = 2.0 * state.window, 1.0, "the broker keeps up: doubled"
        else:
            step = 2.0 * state.step if queued_s < 0.5 * allowed_s else 1.0
            window, reason = state.window + step, "the broker keeps up: raised"
        window = min(window, float(self.max_window))
        return _new_round(replace(state, window=window, step=min(step, window)), now_s), reason

    def _draining(self, state: AutoState, now_s: float, trip_s: float) -> tuple[AutoState, str]:
        """Over when something has come back that was sent one round trip after draining began."""
        assert state.drained_s is not None
        if now_s - trip_s < state.drained_s + min(trip_s, state.trips[0][1]):
            return state, "draining"
        # Whatever was shortest until now has been measured anew: the least of this drain stands for it.
        lately = tuple(entry for entry in state.trips if now_s - entry[0] <= self.probe_s)
        trips = windowed_min(lately, now_s, state.round_trip_s or trip_s, self.forget_s)
        return _new_round(replace(state, trips=trips, drained_s=None, fresh_s=now_s), now_s), "drained: going on"

    def _allowed_s(self, shortest_s: float) -> float:
        return max(self.queue_s, self.queue_share * shortest_s)

    def _knee(self, state: AutoState) -> float:
        return state.rates[0][1] * state.trips[0][1] if state.rates and state.trips else 0.0

    def _action(self, state: AutoState, reason: str) -> Action:
        window = state.window if state.drained_s is None else max(1.0, state.window / 4.0)
        window = math.floor(clamp(window, 1.0, float(self.max_window)))
        parts = {
            "knee": self._knee(state),
            "rate": state.rates[0][1] if state.rates else 0.0,
            "round_trip_s": state.trips[0][1] if state.trips else 0.0,
        }
        command = Batching(1.0, float(max(1, math.ceil(window / 4))), 0.0, float(window))
        return Action(command, parts, saturated=int(window >= self.max_window), reason=reason)


def _new_round(state: AutoState, now_s: float) -> AutoState:
    return replace(state, began_s=now_s, round_trip_s=None, limited=False)
