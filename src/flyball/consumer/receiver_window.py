"""The window of a consumer's receiver: the host of a window loop in a `Consumer`.

Each second a `Runner` samples the loop (`window_loop`); every 50 ms the receiver's window is set to the next whole
number. Without a goal there is no loop and the window stays. The receiver gets further slots for messages that
pause before a retry (`policy.retry`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from flyball.brokers.port import BrokerError, Receiver
from flyball.consumer.policy.controller import DITHER_S, FIRST_WINDOW, WINDOW_LIMITS, ControllerOption
from flyball.consumer.policy.goals import ConsumerMeasurement, Goal, lacks_messages
from flyball.consumer.window_loop import WindowLoop, WindowMetrics
from flyball.control.record import Mode
from flyball.errors import InvalidValue
from flyball.loops.loop import Loop
from flyball.loops.runner import Runner
from flyball.loops.telemetry.sink import Sink
from flyball.store.protocol import StateStore

DEFAULT_WINDOW = 100


class ReceiverWindow:
    """The loop of a goal, if there is one, on the receiver of a consumer.

    `whole` is the window in force: the receiver's without the slots of messages that pause. `asking_since_s` is
    when the receiver was asked for messages that have not come yet (None: it is not being asked); `Consumer` sets
    it.
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
        self._max_window = max_window
        self.whole = max(1, round(self._first))
        self._extra_slots = 0
        self._pace_decides = False
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
                pacing="always" if pacing else "bounded",
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
    def one_at_a_time(self) -> bool:
        """Whether the window is never more than one message, so that messages are handled in order."""
        return (self._max_window if self._acts else self._first) < 2.0

    @property
    def _acts(self) -> bool:
        return self._loop is not None and self._loop.loop.mode == "on"

    @property
    def measurement(self) -> ConsumerMeasurement | None:
        return None if self._loop is None else self._loop.measurement

    @property
    def depth(self) -> float | None:
        return None if self._loop is None else self._loop.depth

    @property
    def status(self) -> str:
        return "" if self._loop is None else self._loop.status

    def may_receive(self, slots: int) -> tuple[int, float]:
        """How many messages may be received into free slots; if none, how long the next one has to wait."""
        if not self._acts or self._loop is None:
            return slots, 0.0
        count = self._loop.count_tokens(slots)
        self._pace_decides = self._pace_decides or not count
        return count, 0.0 if count else self._loop.wait_s

    def use_pace(self) -> None:
        """Count a message that is handed over now."""
        if self._loop is not None:
            self._loop.use_pace()

    async def tick(self, receiver: Receiver) -> None:
        """Every 50 ms, measure whether messages were lacking, and set the next whole window."""
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + DITHER_S, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            waiting_s = None if self.asking_since_s is None else time.monotonic() - self.asking_since_s
            lacking = lacks_messages(waiting_s, receiver.occupied, receiver.window)
            # Where slots wait for the pace, that is not what replacing a message takes.
            round_trip_s = 0.0 if self._pace_decides else receiver.round_trip_s
            self.metrics.tick(full=not lacking, round_trip_s=round_trip_s)
            self._pace_decides = False
            if self._loop is not None and self._acts:
                self.whole = self._loop.next_window()
                self._set(receiver)

    def add_slots(self, receiver: Receiver, extra: int) -> None:
        """Let the receiver have this many slots beside the window."""
        self._extra_slots = extra
        self._set(receiver)

    def _set(self, receiver: Receiver) -> None:
        slots = self.whole + self._extra_slots
        if slots != receiver.window:
            receiver.set_window(slots)

    async def read_depth(self, receiver: Receiver, count_waiting: Callable[[], Awaitable[int]] | None) -> None:
        """Read about once a period how many messages wait; None: a pattern, for which that is not known."""
        if self._loop is None or count_waiting is None:
            return await asyncio.sleep(math.inf)
        while True:
            try:
                waiting = float(await count_waiting())
                self._loop.observe_depth(waiting, max(0.0, waiting - receiver.parked))
            except BrokerError:
                self._loop.forget_depth()
            await asyncio.sleep(0.9 * self._loop.loop.period_s)


def _now_s() -> float:
    return time.monotonic()
