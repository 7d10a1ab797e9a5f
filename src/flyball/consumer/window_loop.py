"""The loop of a consumer: from what was measured to the window, whoever drives it.

    goal → target → decision → whole windows (dither), or a pace

`WindowLoop` keeps the state of these steps; the decisions are those of `policy`. It has no task, thread or timer.
Its host feeds `metrics`, has it sampled once a period, and asks for the next whole window every `DITHER_S`:

* `Consumer` (`receiver_window`) lets a `Runner` sample `loop`, and ticks in a task of its own;
* `regulate` (`external`) uses `sample`, at its client's deliveries, acknowledgements, timers and polls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flyball.consumer.metrics import WindowMetrics
from flyball.consumer.policy.controller import ControllerOption, guard_for, make_controller
from flyball.consumer.policy.goals import (
    Capacity,
    ConsumerMeasurement,
    DrainBy,
    Goal,
    Latency,
    Rate,
    TargetState,
    compute_target,
    parse_goal,
)
from flyball.consumer.policy.pacing import Pacing, TokenBucket, carry_out, take_token
from flyball.control.filters import ewma
from flyball.control.record import LoopRecord, Mode
from flyball.control.wrappers.dither import DitherState, dither_step
from flyball.loops.loop import Loop

_KEEP_RESIDENCE = 0.6  # part of the old residence time that stays
_LEAST_PER_S = 1e-3


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
        self.pace_per_s: float | None = None
        self._mean_window = window
        self._carry_out()

    @property
    def goal(self) -> Goal:
        return self._goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        new = parse_goal(goal)
        if type(new) is not type(self._goal) or isinstance(new, Capacity | Latency):
            self.loop.controller = make_controller(new, self._controller)
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
        self._dither_state, whole = dither_step(self._dither_state, self._mean_window)
        return whole

    @property
    def wait_s(self) -> float:
        """How long the next message has to wait, even if the window has a free slot."""
        return 0.0 if self.pace_per_s is None else take_token(self._bucket, self._now(), self.pace_per_s)[1]

    def use_pace(self) -> None:
        """Count a message that is handed over now; the next one has to wait."""
        if self.pace_per_s is not None:
            self._bucket, _ = take_token(self._bucket, self._now(), self.pace_per_s)

    # --- sensor and actuator of the loop ------------------------------------------------------------------------

    def _measure(self) -> float | None:
        measurement = self.metrics.sample(self._now(), self.depth, self.depth_beyond)
        if measurement is None:
            return None
        if self._metric is not None and measurement.rate_per_s is not None:
            measurement = replace(measurement, rate_per_s=self._metric(measurement.rate_per_s))
        self.measurement = measurement
        if measurement.residence_s is not None:
            self.residence_s = ewma(self.residence_s, measurement.residence_s, _KEEP_RESIDENCE)
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
        self._mean_window, self.pace_per_s = carry_out(self.window, self._pacing, self.residence_s, goal_per_s)
