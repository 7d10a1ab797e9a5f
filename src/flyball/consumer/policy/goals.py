"""What a consumer is to hold, and the set point that follows from it at each sample.

Four goals: a rate; the capacity of the handlers (arrival stays at what they can take); a latency (95 % of
messages waited and were handled within so many seconds); a drain (the queue is empty within so many seconds).
Where the goal is not itself a number that a loop can follow, `compute_target` computes that number from the
measurement: the drain becomes the rate

    set point = publish rate + depth / time left

which is a feed-forward from the queue's depth and from its publishers (`estimate_publish_rate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeAlias

from flyball.control.filters import ewma
from flyball.control.step import Sample
from flyball.errors import InvalidValue

_KEEP_PUBLISH = 0.5  # part of the old estimate of the publish rate that stays: depth is read once a second
_PEAK = 1.2  # growth of the publish rate within a second that is no chance: the estimate takes it over at once
_FULL = 0.8  # share of the time in which the window is used up, from which it counts as full
_LACKING_S = 0.005  # waiting for messages longer than this with free slots in the window means that there are none
_PLENTY = 20.0  # messages that wait at the broker, from which a wider window is sure to bring more
LOW_QUANTILE = 0.1
"""Of handling times: what waits for others delays the quickest messages, too, whatever the slowest take."""
_KEEP_UP = 1.2  # with an empty queue, a drain goal follows the publishers with this much to spare


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_s` messages a second are handed to the handlers."""

    per_s: float

    def __post_init__(self) -> None:
        _positive("rate", self.per_s, "messages a second")

    def __str__(self) -> str:
        return f"rate={self.per_s:g}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Arrival stays at what the handlers can take; `headroom` is the part of the window that may queue."""

    headroom: float = 0.25

    def __post_init__(self) -> None:
        if not 0.0 < self.headroom <= 2.0:
            raise InvalidValue(f"the headroom of a capacity goal must be > 0 and <= 2, got {self.headroom}")

    def __str__(self) -> str:
        return "capacity"


@dataclass(frozen=True, slots=True)
class Latency:
    """95 % of messages wait and are handled within `p95_s`, counted from their event time where they carry one."""

    p95_s: float

    def __post_init__(self) -> None:
        _positive("latency", self.p95_s, "seconds")

    def __str__(self) -> str:
        return f"latency={self.p95_s:g}"


@dataclass(frozen=True, slots=True)
class DrainBy:
    """The queue is empty within `seconds`, and stays empty after that."""

    seconds: float

    def __post_init__(self) -> None:
        _positive("drain-by", self.seconds, "seconds")

    def __str__(self) -> str:
        return f"drain-by={self.seconds:g}"


Goal: TypeAlias = Rate | Capacity | Latency | DrainBy
_FORMS = "rate=400, capacity, latency=0.5 or drain-by=60"


def parse_goal(text: str | Goal) -> Goal:
    """Parse a goal as users write it.

    >>> parse_goal("rate=400"), parse_goal("capacity"), parse_goal("latency=0.5"), parse_goal("drain-by=60")
    (Rate(per_s=400.0), Capacity(headroom=0.25), Latency(p95_s=0.5), DrainBy(seconds=60.0))
    >>> parse_goal("rate")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: goal must be one of rate=400, capacity, latency=0.5 or drain-by=60, got 'rate'
    """
    if not isinstance(text, str):
        if isinstance(text, Rate | Capacity | Latency | DrainBy):
            return text
        raise InvalidValue(f"goal must be one of {_FORMS}, or an object such as flyball.Rate(400), got {text!r}")
    name, equals, value = text.strip().replace("_", "-").partition("=")
    if name == "capacity" and not equals:
        return Capacity()
    kinds: dict[str, Callable[[float], Goal]] = {
        "rate": Rate,
        "latency": Latency,
        "drain-by": DrainBy,
        "capacity": Capacity,
    }
    if name not in kinds or not equals:
        raise InvalidValue(f"goal must be one of {_FORMS}, got {text!r}")
    try:
        number = float(value.strip().removesuffix("/s").removesuffix("s"))
    except ValueError:
        raise InvalidValue(f"goal {name}=… must have a number, got {value!r}; for example {_FORMS}") from None
    return kinds[name](number)


@dataclass(frozen=True, slots=True)
class ConsumerMeasurement:
    """What was measured in one sample period; None: not known.

    `rate_per_s` counts messages handed to handlers, `done_per_s` those that were finished. `residence_s` is for
    how long a message occupies a slot of the window, until the next one is there (`mean_residence_s`: with the
    moments in which the whole process stood still), `handling_p95_s` how long 95 %
    of the messages took at most from being handed over, `handling_low_s` the quickest tenth of them,
    `latency_p95_s` the wait at the broker, too. `used` is the share of the time in
    which the window was full; for the rest of it, the queue had no more. `publish_per_s` is what publishers sent
    between the last two readings of the depth, None where there was no new one.
    """

    time_s: float
    dt_s: float
    rate_per_s: float | None
    residence_s: float | None = None
    used: float = 1.0
    depth: float | None = None
    latency_p95_s: float | None = None
    handling_p95_s: float | None = None
    done_per_s: float | None = None
    publish_per_s: float | None = None
    handling_low_s: float | None = None
    mean_residence_s: float | None = None


def lacks_messages(waiting_s: float | None, occupied: int, window: int) -> bool:
    """Whether the queue has none: the receiver has been asked for `waiting_s` (None: it is not being asked).

    >>> lacks_messages(0.02, occupied=3, window=5), lacks_messages(0.02, 5, 5), lacks_messages(0.002, 3, 5)
    (True, False, False)
    """
    return waiting_s is not None and waiting_s > _LACKING_S and occupied < window


def used_share(full_ticks: int, ticks: int, beyond: float | None) -> float:
    """The share of a sample in which the window was full, that is, in which no message was lacking.

    `beyond` messages waited where only a wider window could bring them (None: not known). It decides in the two
    clear cases: with none there no window could have brought more, and of plenty a wider one brings more.

    >>> used_share(10, 20, None), used_share(10, 20, beyond=0.0), used_share(10, 20, beyond=500.0)
    (0.5, 0.0, 1.0)
    """
    if beyond is not None and (beyond < 1.0 or beyond >= _PLENTY):
        return 0.0 if beyond < 1.0 else 1.0
    return full_ticks / ticks if ticks else 1.0


def median_residence(tick_means_s: Sequence[float]) -> float | None:
    """The residence time of a sample: the median over its ticks (50 ms) of the mean over the tick's messages.

    A mean is what Little's law needs, also where some messages take ten times longer; but a moment in which the
    whole process stops (garbage collection, a busy machine) would distort it, and that falls into a few ticks
    only.

    >>> median_residence([0.010, 0.011, 0.300, 0.010, 0.011])
    0.011
    """
    return median(tick_means_s) if tick_means_s else None


@dataclass(frozen=True, slots=True)
class DepthReading:
    """How many messages waited at a moment, and how many had been handed to handlers by then."""

    time_s: float
    depth: float
    handed: int


def estimate_publish_rate(before: DepthReading, now: DepthReading) -> float | None:
    """Estimate the publishers' rate between two readings: what was handed over, and the growth of the depth.

    >>> before, now = DepthReading(0.0, depth=6000.0, handed=0), DepthReading(2.0, depth=5900.0, handed=200)
    >>> estimate_publish_rate(before, now)
    50.0
    """
    if now.time_s <= before.time_s:
        return None
    return max(0.0, now.handed - before.handed + now.depth - before.depth) / (now.time_s - before.time_s)


@dataclass(frozen=True, slots=True)
class TargetState:
    publish_per_s: float | None = None
    deadline_s: float | None = None


class ConsumerDisturbances(NamedTuple):
    """What a consumer's loop measures beside the rate, as `Sample.disturbances`; None: not known.

    A controller of the catalogue reads them by their index: 0, `window`, for feed-forward, or `RESIDENCE_S` for a
    schedule of gains.
    """

    window: float | None = None
    """The window that the goal needs by Little's law: set point × residence time."""
    residence_s: float | None = None
    used: float | None = None
    depth: float | None = None
    publish_per_s: float | None = None
    rate_per_s: float | None = None
    handling_p95_s: float | None = None
    done_per_s: float | None = None
    handling_low_s: float | None = None
    latency_p95_s: float | None = None
    mean_residence_s: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether the window was full, so that the rate says something about it."""
        return self.used is None or self.used >= _FULL


RESIDENCE_S = ConsumerDisturbances._fields.index("residence_s")


def disturbances_of(sample: Sample) -> ConsumerDisturbances:
    """The disturbances of a sample by name; what is missing, or no finite number, is not known.

    >>> disturbances_of(Sample(1.0, 1.0, 400.0, 390.0, 6.8, (None, 0.017, math.nan)))[:4]
    (None, 0.017, None, None)
    """
    if isinstance(sample.disturbances, ConsumerDisturbances):
        return sample.disturbances
    return ConsumerDisturbances(*map(_finite, sample.disturbances[: len(ConsumerDisturbances._fields)]))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Target:
    """The set point, the measurement and the disturbances of one sample of the loop."""

    setpoint: float
    measurement: float | None
    disturbances: ConsumerDisturbances


def compute_target(goal: Goal, state: TargetState, measurement: ConsumerMeasurement) -> tuple[TargetState, Target]:
    """Compute the target of this sample.

    >>> first = ConsumerMeasurement(0.0, 1.0, rate_per_s=100.0, depth=6000.0)
    >>> state, target = compute_target(DrainBy(60.0), TargetState(), first)
    >>> target.setpoint  # nothing is known of the publishers yet: 6000 in 60 s
    100.0
    >>> second = ConsumerMeasurement(1.0, 1.0, rate_per_s=100.0, depth=5950.0, publish_per_s=50.0)
    >>> state, target = compute_target(DrainBy(60.0), state, second)
    >>> round(target.setpoint, 1)  # 50/s are published; 5950 in 59 s
    150.8
    """
    publish, rate, residence = state.publish_per_s, measurement.rate_per_s, measurement.residence_s
    if measurement.publish_per_s is not None:
        peak = publish is not None and measurement.publish_per_s > _PEAK * publish
        publish = measurement.publish_per_s if peak else ewma(publish, measurement.publish_per_s, _KEEP_PUBLISH)
    deadline = state.deadline_s
    if isinstance(goal, Rate):
        setpoint = goal.per_s
    elif isinstance(goal, Latency):
        setpoint = goal.p95_s
    elif isinstance(goal, Capacity):
        setpoint = rate or 0.0  # the controller needs none: the rate that the handlers reach is the goal
    else:
        waiting = measurement.depth or 0.0
        if waiting < 1.0:
            deadline = None
            setpoint = max(1.0, _KEEP_UP * (publish or rate or 0.0))
        else:
            deadline = measurement.time_s + goal.seconds if deadline is None else deadline
            setpoint = (publish or 0.0) + waiting / max(deadline - measurement.time_s, measurement.dt_s)
    values = (
        None if residence is None or isinstance(goal, Latency) else setpoint * residence,
        residence,
        measurement.used,
        measurement.depth,
        publish,
        rate,
        measurement.handling_p95_s,
        measurement.done_per_s,
        measurement.handling_low_s,
        measurement.latency_p95_s,
        measurement.mean_residence_s,
    )
    return TargetState(publish, deadline), Target(
        setpoint,
        measurement.latency_p95_s if isinstance(goal, Latency) else rate,
        ConsumerDisturbances(*map(_finite, values)),
    )


def _positive(name: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InvalidValue(f"goal {name} must be > 0 {unit}, got {value!r}")
