"""The loop of a consumer: from what was measured to the window, whoever drives it.

    goal → aim → decide → whole windows (dither), or a pace

`WindowLoop` keeps the state of these steps; the decisions are those of `policy`. It has no task, thread or timer.
Its host feeds `metrics`, has it sampled once a period, and asks for the next whole window every `DITHER_S`:

* `Consumer` (`receiver_window`) lets a `Runner` sample `loop`, and ticks in a task of its own;
* `regulate` (`external`) uses `sample`, at its client's deliveries, acknowledgements, timers and polls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flyball.consumer.metrics import Sensing
from flyball.consumer.policy import (
    AimState,
    Capacity,
    DitherState,
    DrainBy,
    Goal,
    Latency,
    Rate,
    Regulator,
    Seen,
    aim,
    dither_step,
    guard_for,
    parse_goal,
    regulator,
)
from flyball.consumer.policy.pacing import Bucket, Pacing, carry_out, take
from flyball.control.filters import ewma
from flyball.control.record import LoopRecord, Mode
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
        controller: Regulator = None,
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
        self.metrics = Sensing()
        self.seen: Seen | None = None
        self.residence_s: float | None = None
        self.depth: float | None = None
        self.depth_beyond: float | None = None
        self._aiming, self._dithering, self._bucket = AimState(), DitherState(), Bucket()
        _, self._target = aim(goal, self._aiming, Seen(now(), period_s, rate_per_s=None))
        law = regulator(goal, controller)
        self.loop = Loop(
            name,
            sensor=self._measure,
            reference=lambda: self._target.setpoint,
            disturbances=lambda: self._target.disturbances,
            actuator=self._apply,
            controller=law,
            period_s=period_s,
            mode=mode,
            limits=limits,
            guard=guard_for(law),
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
            self.loop.controller = regulator(new, self._controller)
            self._aiming = AimState(self._aiming.publish_per_s)
        self._goal = new
        self._carry_out()

    @property
    def status(self) -> str:
        """What the loop or its guard has to say at the moment; empty in everyday operation."""
        last = self.loop.last
        return "" if last is None else "; ".join(filter(None, (last.reason, last.alert)))

    def observe_depth(self, depth: float, beyond: float) -> None:
        """So many wait in the queue now, `beyond` of them where only a wider window could bring them."""
        self.depth, self.depth_beyond = depth, beyond
        self.metrics.looked(self._now(), depth)

    def forget_depth(self) -> None:
        """The queue could not be asked."""
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
        self._dithering, whole = dither_step(self._dithering, self._mean_window)
        return whole

    @property
    def wait_s(self) -> float:
        """How long the next message has to wait, however much room the window has."""
        return 0.0 if self.pace_per_s is None else take(self._bucket, self._now(), self.pace_per_s)[1]

    def use_pace(self) -> None:
        """A message goes now: the next one has to wait for its turn."""
        if self.pace_per_s is not None:
            self._bucket, _ = take(self._bucket, self._now(), self.pace_per_s)

    # --- sensor and actuator of the loop ------------------------------------------------------------------------

    def _measure(self) -> float | None:
        seen = self.metrics.sample(self._now(), self.depth, self.depth_beyond)
        if seen is None:
            return None
        if self._metric is not None and seen.rate_per_s is not None:
            seen = replace(seen, rate_per_s=self._metric(seen.rate_per_s))
        self.seen = seen
        if seen.residence_s is not None:
            self.residence_s = ewma(self.residence_s, seen.residence_s, _KEEP_RESIDENCE)
        self._aiming, self._target = aim(self._goal, self._aiming, seen)
        self._carry_out()
        return self._target.measurement

    def _apply(self, window: float) -> None:
        self.window = window
        self._carry_out()

    def _carry_out(self) -> None:
        """From the command to what is done: the mean of the whole windows, and the pace."""
        goal_per_s: float | None = None
        if isinstance(self._goal, Rate):
            goal_per_s = self._goal.per_s
        elif isinstance(self._goal, DrainBy) and self.seen is not None:
            goal_per_s = max(self._target.setpoint, _LEAST_PER_S)
        self._mean_window, self.pace_per_s = carry_out(self.window, self._pacing, self.residence_s, goal_per_s)
