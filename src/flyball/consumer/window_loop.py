"""The loop of a consumer: from what was measured to the window, whoever drives it.

    metrics → measurement; goal → target → decision → whole windows (dither), or a pace

`WindowMetrics` counts and sums: rate, residence time per message, how full the window was. `WindowLoop` keeps the
state of the other steps; the decisions are those of `policy`. It has no task, thread or timer. Its host counts
into `metrics`, has it sampled once a period, and asks for the next whole window every `DITHER_S`:

* `Consumer` (`receiver_window`) lets a `Runner` sample `loop`, and ticks in a task of its own;
* `regulate` (`external`) uses `sample`, at its client's deliveries, acknowledgements, timers and polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from flyball.consumer.policy.controller import ControllerOption, guard_for, make_controller
from flyball.consumer.policy.goals import (
    LOW_QUANTILE,
    Capacity,
    ConsumerMeasurement,
    DepthReading,
    DrainBy,
    Goal,
    Latency,
    Rate,
    TargetState,
    compute_target,
    estimate_publish_rate,
    median_residence,
    parse_goal,
    used_share,
)
from flyball.consumer.policy.little import Little
from flyball.consumer.policy.pacing import (
    KEEP_RESIDENCE,
    Actuation,
    MetricScale,
    Pacing,
    TokenBucket,
    carry_out,
    count_tokens,
    take_token,
)
from flyball.control.filters import ewma
from flyball.control.record import LoopRecord, Mode
from flyball.control.wrappers.dither import DitherState, dither_step
from flyball.histogram import Histogram
from flyball.loops.loop import Loop

_LEAST_PER_S = 1e-3
_LEAST_TIMED = 1000  # least number of messages of a sample whose times count for the quantiles


class WindowMetrics:
    """Collects what happens to messages; `sample` returns the measurement since the last one."""

    def __init__(self) -> None:
        self.handed = 0
        self.done = 0
        self._handed_at_sample = self._done_at_sample = 0
        self._sampled_s: float | None = None
        self._sum_s = 0.0
        self._done_at_tick = 0
        self._total_s, self._timed = 0.0, 0
        self._next_timed = 0
        self._stride = 1
        self._ticks = 0
        self._full = 0
        self._last_depth: DepthReading | None = None
        self._publish_per_s: float | None = None
        self._means_s: deque[float] = deque(maxlen=400)
        self._handling = Histogram()
        self._latency = Histogram()

    def add_finished(self, residence_s: float, latency_s: float | None) -> None:
        """Count a message that was handled; `latency_s` counts from its event, if that time is known.

        The mean includes every message. For quantiles a thousand a sample are enough: of faster flows every nth.
        """
        self.done += 1
        self._sum_s += residence_s
        if self.done >= self._next_timed:
            self._next_timed = self.done + self._stride
            self._handling.add(residence_s)
            self._latency.add(residence_s if latency_s is None else latency_s)

    def add_wait(self, total_s: float) -> None:
        """Add further time in slots: of handled messages until they are acknowledged, and of failed attempts."""
        self._sum_s += total_s

    def tick(self, *, full: bool, round_trip_s: float) -> None:
        """End a tick; `full`: no message was lacking, `round_trip_s` is what replacing a message takes."""
        self._ticks += 1
        self._full += full
        count, self._done_at_tick = self.done - self._done_at_tick, self.done
        if count:
            self._means_s.append(self._sum_s / count + round_trip_s)
            self._total_s += self._sum_s + count * round_trip_s
            self._timed += count
            self._sum_s = 0.0

    def add_depth(self, now_s: float, depth: float) -> None:
        """Add a reading of the queue's depth."""
        before, self._last_depth = self._last_depth, DepthReading(now_s, depth, self.handed)
        self._publish_per_s = None if before is None else estimate_publish_rate(before, self._last_depth)

    def sample(self, now_s: float, depth: float | None, beyond: float | None = None) -> ConsumerMeasurement | None:
        """The measurement since the last sample; None where no time has passed.

        `depth` messages waited at the last reading, `beyond` of them where only a wider window could bring them.
        """
        since_s, self._sampled_s = self._sampled_s, now_s
        handed, self._handed_at_sample = self.handed - self._handed_at_sample, self.handed
        done, self._done_at_sample = self.done - self._done_at_sample, self.done
        if since_s is None or now_s - since_s < 1e-3:
            return None
        measurement = ConsumerMeasurement(
            now_s,
            now_s - since_s,
            handed / (now_s - since_s),
            median_residence(self._means_s),
            used_share(self._full, self._ticks, beyond),
            depth,
            self._latency.quantile(0.95),
            self._handling.quantile(0.95),
            done / (now_s - since_s),
            self._publish_per_s,
            self._handling.quantile(LOW_QUANTILE),
            self._total_s / self._timed if self._timed else None,
        )
        self._total_s, self._timed = 0.0, 0
        self._publish_per_s = None
        self._stride = max(1, done // _LEAST_TIMED)
        self._ticks = self._full = 0
        self._means_s.clear()
        self._handling, self._latency = Histogram(), Histogram()
        return measurement


class WindowLoop:
    """A goal, the loop that holds it, and how its command is carried out.

    `window` is the command in force, a fraction; `next_window` gives whole numbers whose mean it is. `now` is the
    clock of `metrics` and of the pace. `metric` replaces the measured rate by what it returns for it (None: no
    measurement).
    """

    def __init__(
        self,
        name: str,
        goal: Goal,
        controller: ControllerOption = None,
        *,
        now: Callable[[], float],
        limits: tuple[float, float],
        window: float,
        period_s: float = 1.0,
        mode: Mode = "on",
        pacing: Pacing = "off",
        metric: Callable[[float], float | None] | None = None,
    ) -> None:
        self._goal, self._controller = goal, controller
        self._now, self._metric, self._pacing = now, metric, pacing
        self._most = limits[1]
        self._scale = MetricScale()
        self.metrics = WindowMetrics()
        self.measurement: ConsumerMeasurement | None = None
        self.residence_s: float | None = None
        self.depth: float | None = None
        self.depth_beyond: float | None = None
        self._target_state, self._dither_state, self._bucket = TargetState(), DitherState(), TokenBucket()
        _, self._target = compute_target(
            goal, self._target_state, ConsumerMeasurement(now(), period_s, rate_per_s=None)
        )
        goal_controller = make_controller(goal, controller)
        self.loop = Loop(
            name,
            sensor=self._measure,
            reference=lambda: self._target.setpoint,
            disturbances=lambda: self._target.disturbances,
            actuator=self._apply,
            controller=goal_controller,
            period_s=period_s,
            mode=mode,
            limits=limits,
            guard=guard_for(goal_controller),
            command=min(window, limits[1]),
            glide=False,
        )
        self.window = window
        self._actuation = Actuation(window)
        self._carry_out()

    @property
    def goal(self) -> Goal:
        return self._goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        new = parse_goal(goal)
        if type(new) is not type(self._goal) or isinstance(new, Capacity | Latency):
            self.loop.controller = make_controller(new, self._controller)
            self.loop.guard = guard_for(self.loop.controller)
            self._target_state = TargetState(self._target_state.publish_per_s)
        self._goal = new
        self._carry_out()

    @property
    def status(self) -> str:
        """Why the loop does not hold its goal at the moment, if so; else empty."""
        last = self.loop.last
        return "" if last is None else "; ".join(filter(None, (last.reason, last.alert)))

    def observe_depth(self, depth: float, beyond: float) -> None:
        """Add a reading of the depth; `beyond` of it waits where only a wider window could bring it."""
        self.depth, self.depth_beyond = depth, beyond
        self.metrics.add_depth(self._now(), depth)

    def forget_depth(self) -> None:
        """Drop the depth, since the queue could not be asked."""
        self.depth = self.depth_beyond = None

    def sample(self) -> LoopRecord:
        """Measure, decide, and put the command in force: what a `Runner` does for a `Consumer`."""
        measurement = self._measure()
        record = self.loop.step(self._now(), measurement, self._target.disturbances)
        if isinstance(record.command, float):
            self._apply(record.command)
        return record

    def next_window(self) -> int:
        """The whole window to set now; asked for every `DITHER_S`."""
        self._dither_state, whole = dither_step(self._dither_state, self._actuation.window)
        return whole

    @property
    def pace_per_s(self) -> float | None:
        """Messages a second that may be handed over, even if the window has free slots; None: any number."""
        return self._actuation.pace_per_s

    @property
    def wait_s(self) -> float:
        """How long the next message has to wait, even if the window has a free slot."""
        _, pace, burst_s = self._actuation
        return 0.0 if pace is None else take_token(self._bucket, self._now(), pace, burst_s)[1]

    def count_tokens(self, slots: int) -> int:
        """How many messages may be handed over now, if the window has `slots` free slots."""
        _, pace, burst_s = self._actuation
        return slots if pace is None else min(slots, count_tokens(self._bucket, self._now(), pace, burst_s))

    def use_pace(self) -> None:
        """Count a message that is handed over now; the next one has to wait."""
        _, pace, burst_s = self._actuation
        if pace is not None:
            self._bucket, _ = take_token(self._bucket, self._now(), pace, burst_s)

    # --- sensor and actuator of the loop ------------------------------------------------------------------------

    def _measure(self) -> float | None:
        measurement = self.metrics.sample(self._now(), self.depth, self.depth_beyond)
        if measurement is None:
            return None
        if self._metric is not None and measurement.rate_per_s is not None:
            reported = self._metric(measurement.rate_per_s)
            self._scale = self._scale.update(reported, measurement.rate_per_s)
            measurement = replace(measurement, rate_per_s=reported)
        self.measurement = measurement
        if measurement.residence_s is not None:
            self.residence_s = ewma(self.residence_s, measurement.residence_s, KEEP_RESIDENCE)
        self._target_state, self._target = compute_target(self._goal, self._target_state, measurement)
        self._carry_out()
        return self._target.measurement

    def _apply(self, window: float) -> None:
        self.window = window
        self._carry_out()

    def _carry_out(self) -> None:
        """Turn the command into the mean of the whole windows and the pace."""
        goal_per_s: float | None = None
        if isinstance(self._goal, Rate):
            goal_per_s = self._goal.per_s
        elif isinstance(self._goal, DrainBy) and self.measurement is not None:
            goal_per_s = max(self._target.setpoint, _LEAST_PER_S)
        pacing = self._pacing
        if pacing == "bounded" and not (isinstance(self._goal, Rate) and isinstance(self.loop.controller, Little)):
            pacing = "off"  # a controller of the user's own has the window to itself
        elif pacing == "bounded" and self._metric is not None and goal_per_s is not None:
            goal_per_s = self._scale.pace_for(goal_per_s)
        self._actuation = carry_out(self.window, pacing, self.residence_s, goal_per_s, self._most)
