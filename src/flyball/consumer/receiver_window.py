"""The window of a consumer's receiver: the host of a window loop in a `Consumer`.

Each second a `Runner` samples the loop (`window_loop`); every 50 ms the receiver's window is set to the next whole
number. Without a goal there is no loop and the window stays.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from flyball.brokers.port import Broker, BrokerError, Receiver
from flyball.consumer.metrics import WindowMetrics
from flyball.consumer.policy.controller import DITHER_S, FIRST_WINDOW, WINDOW_LIMITS, ControllerOption
from flyball.consumer.policy.goals import ConsumerMeasurement, Goal, lacks_messages
from flyball.consumer.subscription import Subscription
from flyball.consumer.window_loop import WindowLoop
from flyball.control.record import Mode
from flyball.errors import InvalidValue
from flyball.loops.loop import Loop
from flyball.loops.runner import Runner
from flyball.loops.telemetry.sink import Sink
from flyball.store.protocol import StateStore

DEFAULT_WINDOW = 100


class ReceiverWindow:
    """The loop of a goal, if there is one, on the receiver of a consumer.

    `asking_since_s` is when the receiver was asked for messages that have not come yet (None: it is not being
    asked); `Consumer` sets it.
    """

    def __init__(
        self,
        name: str,
        goal: Goal | None,
        controller: ControllerOption,
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
        acts = goal is not None and mode == "on"
        self._first = float(window) if window is not None else FIRST_WINDOW if acts else float(DEFAULT_WINDOW)
        self.asking_since_s: float | None = None
        self._loop: WindowLoop | None = None
        self.runner: Runner | None = None
        if goal is not None:
            self._loop = WindowLoop(
                name,
                goal,
                controller,
                now=_now_s,
                limits=(min(WINDOW_LIMITS[0], max_window), max_window),
                window=self._first,
                period_s=period_s,
                mode=mode,
                pacing="always" if pacing else "off",
                metric=metric,
            )
            self.runner = Runner([self._loop.loop], telemetry=telemetry, store=store)
        self.metrics = WindowMetrics() if self._loop is None else self._loop.metrics

    @property
    def goal(self) -> Goal | None:
        return None if self._loop is None else self._loop.goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        if self._loop is None:
            raise InvalidValue("a consumer that was made without a goal has no loop: make it with one")
        self._loop.goal = goal

    @property
    def loop(self) -> Loop | None:
        return None if self._loop is None else self._loop.loop

    @property
    def command(self) -> float:
        """The window that is asked for; what the receiver has is one of its two neighbours."""
        return self._first if self._loop is None else self._loop.window

    @property
    def measurement(self) -> ConsumerMeasurement | None:
        return None if self._loop is None else self._loop.measurement

    @property
    def depth(self) -> float | None:
        return None if self._loop is None else self._loop.depth

    @property
    def status(self) -> str:
        return "" if self._loop is None else self._loop.status

    async def pace(self) -> None:
        """Wait until the next message may go; at once where pacing was not asked for."""
        if self._loop is None:
            return
        wait_s = self._loop.wait_s
        self._loop.use_pace()
        if wait_s > 0.0:
            await asyncio.sleep(wait_s)

    async def tick(self, receiver: Receiver) -> None:
        """Every 50 ms, measure whether messages were lacking, and set the next whole window."""
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + DITHER_S, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            waiting_s = None if self.asking_since_s is None else time.monotonic() - self.asking_since_s
            lacking = lacks_messages(waiting_s, receiver.occupied, receiver.window)
            self.metrics.tick(full=not lacking, round_trip_s=receiver.round_trip_s)
            if self._loop is not None and self._loop.loop.mode == "on":
                whole = self._loop.next_window()
                if whole != receiver.window:
                    receiver.set_window(whole)

    async def read_depth(self, broker: Broker, receiver: Receiver, subscription: Subscription) -> None:
        """Read the depth of the queue about once a period."""
        if self._loop is None or subscription.is_pattern:
            return await asyncio.sleep(math.inf)  # there is no loop, or a pattern, which has no single depth
        while True:
            try:
                depth = await broker.depth(subscription.name, subscription.group)
                ours = receiver.in_flight if subscription.group is not None else 0
                waiting = float(max(0, depth - ours))
                self._loop.observe_depth(waiting, max(0.0, waiting - receiver.parked))
            except BrokerError:
                self._loop.forget_depth()
            await asyncio.sleep(0.9 * self._loop.loop.period_s)


def _now_s() -> float:
    return time.monotonic()
