"""The goal, the window and the steps of a client with a goal, whichever client it is."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from flyball.consumer.policy.controller import DITHER_S, FIRST_WINDOW, ControllerOption
from flyball.consumer.policy.goals import Goal, parse_goal
from flyball.consumer.window_loop import WindowLoop
from flyball.control.record import LoopRecord
from flyball.errors import InvalidValue

_LEAST_WINDOW = 1e-4  # a pace stands for windows below 1, so they may be as small as a rate needs
_MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class RegulatedStats:
    """Counts since the start, and what the last step measured (None: nothing yet).

    `handed` messages were handed to the program, `done` of them are done. `window` is how many may be in flight;
    where that is less than one, messages are handed over at `pace_per_s` instead.
    """

    handed: int
    done: int
    in_flight: int
    window: float
    pace_per_s: float | None
    rate_per_s: float | None
    residence_s: float | None


class Regulated:
    """What both kinds of clients have in common: the goal, and its loop, which any event of the client drives."""

    def __init__(self, goal: str | Goal, controller: ControllerOption, max_window: int, period_s: float) -> None:
        if max_window < 1:
            raise InvalidValue(f"max_window must be >= 1, got {max_window}")
        self._loop = WindowLoop(
            "regulated",
            parse_goal(goal),
            controller,
            now=time.monotonic,
            limits=(_LEAST_WINDOW, float(max_window)),
            window=FIRST_WINDOW,
            period_s=period_s,
            pacing="below one",
        )
        self._steps: deque[LoopRecord] = deque(maxlen=_MOST_STEPS)
        self._whole_window = 1
        self._last_tick_s = self._last_sample_s = time.monotonic()
        self._loop.metrics.sample(self._last_sample_s, None)

    def _advance(self, *, full: bool, round_trip_s: float = 0.0) -> None:
        """Do what is due by now: measure, sample, set the next whole window. May be called at any event.

        `full`: no message was lacking.
        """
        now_s = time.monotonic()
        if now_s - self._last_tick_s < DITHER_S:
            return
        self._last_tick_s = now_s
        self._loop.metrics.tick(full=full, round_trip_s=round_trip_s)
        if now_s - self._last_sample_s >= self._loop.loop.period_s:
            self._last_sample_s = now_s
            self._steps.append(self._loop.sample())
        self._whole_window = self._loop.next_window()

    def _count_handed(self) -> None:
        self._loop.metrics.handed += 1
        self._loop.use_pace()

    @property
    def goal(self) -> Goal:
        """The goal. It may be changed while the program runs."""
        return self._loop.goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        self._loop.goal = goal

    @property
    def window(self) -> float:
        """How many messages may be in flight. A fraction is the mean of the two whole numbers beside it."""
        return self._loop.window

    @property
    def in_flight(self) -> int:
        """Messages that the program has and that are not done."""
        raise NotImplementedError

    @property
    def status(self) -> str:
        """Why the goal is not held at the moment, if so; else empty."""
        return self._loop.status

    @property
    def stats(self) -> RegulatedStats:
        loop, measurement = self._loop, self._loop.measurement
        return RegulatedStats(
            loop.metrics.handed,
            loop.metrics.done,
            self.in_flight,
            loop.window,
            loop.pace_per_s,
            None if measurement is None else measurement.rate_per_s,
            None if measurement is None else measurement.residence_s,
        )

    def steps(self) -> list[LoopRecord]:
        """The newest steps of the loop: what was measured, what was decided, and why."""
        return list(self._steps)
