"""The consumer's loop on the live receiver: what it sees, and the window that it sets.

Each second the loop (`flyball.loops`) decides from what was seen; every 50 ms the receiver's window is set to one
of the two neighbours of what the loop wants, so that their mean is that (sigma-delta dither). The decisions are
those of `policy`; here they are fed and carried out. Without a goal there is no loop and the window stays.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from flyball.brokers.port import Broker, BrokerError, Receiver
from flyball.consumer.metrics import Sensing
from flyball.consumer.policy import (
    DITHER_S,
    FIRST_WINDOW,
    WINDOW_LIMITS,
    AimState,
    Capacity,
    DitherState,
    Goal,
    Latency,
    Rate,
    Regulator,
    Seen,
    Target,
    aim,
    dither_step,
    guard_for,
    lacks_messages,
    parse_goal,
    regulator,
)
from flyball.consumer.policy.pacing import Bucket, take
from flyball.consumer.subscription import Place
from flyball.control.record import Mode
from flyball.errors import InvalidValue
from flyball.loops.loop import Loop
from flyball.loops.runner import Runner
from flyball.loops.telemetry.sink import Sink
from flyball.store.protocol import StateStore

DEFAULT_WINDOW = 100


class Steering:
    """A goal, the loop that holds it, and the window that is wanted now.

    `asking_since_s` is when the receiver was asked for messages that have not come yet (None: it is not being
    asked); whoever asks says so.
    """

    def __init__(
        self,
        name: str,
        goal: Goal | None,
        controller: Regulator,
        *,
        mode: Mode,
        window: int | None,
        max_window: float,
        pacing: bool,
        period_s: float,
        metric: Callable[[float], float | None] | None,
        telemetry: Sequence[Sink] | None,
        store: StateStore | None,
    ) -> None:
        self._goal = goal
        self._wanted_controller = controller
        self._metric = metric
        self._bucket = Bucket() if pacing else None
        acting = goal is not None and mode == "on"
        first = float(window) if window is not None else FIRST_WINDOW if acting else float(DEFAULT_WINDOW)
        self.wanted = first
        self.sensing = Sensing()
        self.seen: Seen | None = None
        self.depth: float | None = None
        self._beyond: float | None = None  # of these, how many only a wider window could bring
        self.asking_since_s: float | None = None
        self._dithering, self._aiming = DitherState(), AimState()
        self._target: Target | None = None
        self.loop: Loop | None = None
        self.runner: Runner | None = None
        if goal is not None:
            law = regulator(goal, controller)
            self.loop = Loop(
                name,
                sensor=self._sense,
                actuator=self._act,
                controller=law,
                goal=1.0,
                period_s=period_s,
                mode=mode,
                limits=(min(WINDOW_LIMITS[0], max_window), max_window),
                guard=guard_for(law),
                command=min(first, max_window),
                disturbances=lambda: () if self._target is None else self._target.disturbances,
                glide=False,
            )
            self.runner = Runner([self.loop], telemetry=telemetry, store=store)

    @property
    def goal(self) -> Goal | None:
        return self._goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        if self.loop is None:
            raise InvalidValue("a consumer that was made without a goal has no loop: make it with one")
        new = parse_goal(goal)
        if type(new) is not type(self._goal) or isinstance(new, Capacity | Latency):
            law = regulator(new, self._wanted_controller)
            self.loop.controller = law
            self._aiming = AimState(self._aiming.publish_per_s)
        self._goal = new

    async def pace(self) -> None:
        """Wait until the next message may go; at once where pacing was not asked for."""
        if self._bucket is None:
            return
        if isinstance(self._goal, Rate):
            rate = self._goal.per_s
        elif self._target is not None:
            rate = max(self._target.setpoint, 1e-3)
        else:
            return  # a drain does not know its rate yet
        self._bucket, wait_s = take(self._bucket, time.monotonic(), rate)
        if wait_s > 0.0:
            await asyncio.sleep(wait_s)

    # --- sensor and actuator of the loop ------------------------------------------------------------------------

    def _sense(self) -> float | None:
        seen = self.sensing.sample(time.monotonic(), self.depth, self._beyond)
        if seen is None or self._goal is None or self.loop is None:
            return None
        if self._metric is not None and seen.rate_per_s is not None:
            seen = replace(seen, rate_per_s=self._metric(seen.rate_per_s))
        self.seen = seen
        self._aiming, self._target = aim(self._goal, self._aiming, seen)
        self.loop.goal = self._target.setpoint
        return self._target.measurement

    def _act(self, window: float) -> None:
        self.wanted = window

    # --- beside the loop ----------------------------------------------------------------------------------------

    async def tick(self, receiver: Receiver) -> None:
        """Every 50 ms: look whether messages were lacking, and set the next whole window."""
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + DITHER_S, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            waiting_s = None if self.asking_since_s is None else time.monotonic() - self.asking_since_s
            lacking = lacks_messages(waiting_s, receiver.occupied, receiver.window)
            self.sensing.tick(full=not lacking, round_trip_s=receiver.round_trip_s)
            if self.loop is not None and self.loop.mode == "on":
                wanted = max(self.wanted, WINDOW_LIMITS[0])
                if self._bucket is not None:
                    wanted = 2.0 * wanted + 1.0  # the bucket holds the rate: the window must not
                self._dithering, whole = dither_step(self._dithering, wanted)
                if whole != receiver.window:
                    receiver.set_window(whole)

    async def look(self, broker: Broker, receiver: Receiver, place: Place) -> None:
        """Once a second: how many wait."""
        if self.loop is None or place.is_pattern:
            return await asyncio.sleep(math.inf)  # nobody asks, or there is no one depth
        while True:
            try:
                depth = await broker.depth(place.name, place.group)
                ours = receiver.in_flight if place.group is not None else 0
                self.depth = float(max(0, depth - ours))
                self._beyond = max(0.0, self.depth - receiver.parked)
                self.sensing.looked(time.monotonic(), self.depth)
            except BrokerError:
                self.depth = self._beyond = None
            await asyncio.sleep(0.9 * self.loop.period_s)
