"""`Consumer`: takes messages, calls a handler, acknowledges, and holds a goal by steering what is in flight.

    async def handle(message): ...
    await Consumer("amqp://localhost/", queue="orders", handler=handle, goal="rate=400").run()

Each second the loop (`flyball.loops`) decides from what was seen; every 50 ms the receiver's window is set to one
of the two neighbours of what the loop wants, so that their mean is that (sigma-delta dither).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from flyball.brokers import connect
from flyball.brokers.port import (
    Broker,
    BrokerError,
    LoginRefused,
    Message,
    NoSuchChannel,
    Receiver,
    Sender,
    Start,
    Unsupported,
)
from flyball.consumer.handling import Handler, Handling, is_async
from flyball.consumer.idempotent import Finished
from flyball.consumer.pacing import Bucket, take
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
    RetryPolicy,
    Seen,
    Target,
    aim,
    dither_step,
    guard_for,
    parse_goal,
    regulator,
)
from flyball.consumer.sensing import Sensing
from flyball.errors import InvalidValue
from flyball.loops.loop import Loop
from flyball.loops.policy import MODES, Mode, Receipt
from flyball.loops.runner import Runner
from flyball.loops.telemetry.sink import Sink
from flyball.store.protocol import Database, StateStore

log = logging.getLogger("flyball.consumer")

DEFAULT_WINDOW = 100
_WAIT_S = 0.2  # the longest one wait for messages; it is never cancelled, for what came would then be lost
_LACKING_S = 0.005  # waiting for messages longer than this with room in the window means that there are none
_AGAIN_S = 0.5


class Consumer:
    """Consumes a queue, or a channel as a member of a group.

    `handler` takes a `Message`; a coroutine function runs on the event loop, any other in one of `concurrency`
    threads. It may raise: the message is then tried again `retries` times with growing pauses, and after that
    goes to the channel `dead_letter` (default: the queue's name and ".dead"; "broker": refused without requeueing,
    for a queue that has a dead-letter exchange). `handler_timeout_s` ends a coroutine; a thread cannot be ended,
    its message counts as failed and the thread is replaced.

    `goal` is "rate=400", "capacity", "latency=0.5", "drain-by=60" or an object of `flyball.consumer.goals`;
    without one the window is fixed at `window`. `controller` is a name of the catalogue, a config
    ({"name": "pi", "kp": …}) or an object; default is Little's law with a trim. In the modes `advise` and
    `shadow` the window stays at `window` and the receipts say what would be done. `pacing` also hands messages
    over evenly, by a token bucket. `metric` replaces the measured rate by what it returns for it (None: no
    measurement).

    `idempotent` is a database of `flyball.store` that remembers finished ids across restarts; `store` keeps the
    state of the loop, `telemetry` are sinks for its receipts.
    """

    def __init__(
        self,
        url: str,
        *,
        handler: Handler,
        queue: str | None = None,
        channel: str | None = None,
        group: str | None = None,
        start: Start = "earliest",
        goal: str | Goal | None = None,
        controller: Regulator = None,
        mode: Mode = "on",
        concurrency: int | None = None,
        handler_timeout_s: float | None = None,
        retries: int | RetryPolicy = 3,
        dead_letter: str | None = None,
        window: int | None = None,
        max_window: float = WINDOW_LIMITS[1],
        pacing: bool = False,
        auto_ack: bool = False,
        period_s: float = 1.0,
        metric: Callable[[float], float | None] | None = None,
        idempotent: Database | None = None,
        telemetry: Sequence[Sink] | None = None,
        store: StateStore | None = None,
        stop_timeout_s: float = 30.0,
        name: str | None = None,
    ) -> None:
        self._place = _place(queue, channel, group)
        self._url, self._handler, self._start = url, handler, start
        is_async(handler)  # refuses what cannot be called
        self._goal = None if goal is None else parse_goal(goal)
        _check(self._goal, controller, mode, concurrency, handler_timeout_s, window, max_window, auto_ack, pacing)
        self._wanted_controller = controller
        self._concurrency, self._timeout_s = concurrency, handler_timeout_s
        self._retry = retries if isinstance(retries, RetryPolicy) else RetryPolicy(retries)
        self._dead_letter = dead_letter or f"{self._place[0].replace('*', 'any').replace('#', 'all')}.dead"
        self._auto_ack, self._metric, self._stop_timeout_s = auto_ack, metric, stop_timeout_s
        self._idempotent = idempotent
        self._pacing = Bucket() if pacing else None
        self.name = name or self._place[0]
        acting = self._goal is not None and mode == "on"
        first = float(window) if window is not None else FIRST_WINDOW if acting else float(DEFAULT_WINDOW)
        self._wanted = first
        self._dithering = DitherState()
        self._sensing = Sensing()
        self._aiming = AimState()
        self._target: Target | None = None
        self.seen: Seen | None = None
        self._depth: float | None = None
        self._receiving_since_s: float | None = None
        self._trip_s = 0.0
        self._stop = asyncio.Event()
        self._broker: Broker | None = None
        self._receiver: Receiver | None = None
        self._handling: Handling | None = None
        self._bury_sender: Sender | None = None
        self.loop: Loop | None = None
        self.runner: Runner | None = None
        if self._goal is not None:
            law = regulator(self._goal, controller)
            self.loop = Loop(
                self.name,
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

    # --- what a program sees and changes while it runs ----------------------------------------------------------

    @property
    def goal(self) -> Goal | None:
        return self._goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        """Another goal from the next sample on; the window starts from where it is."""
        if self.loop is None:
            raise InvalidValue("a consumer that was made without a goal has no loop: make it with one")
        new = parse_goal(goal)
        if type(new) is not type(self._goal) or isinstance(new, Capacity | Latency):
            law = regulator(new, self._wanted_controller)
            self.loop.controller = law
            self._aiming = AimState(self._aiming.publish_per_s, self._aiming.depth)
        self._goal = new

    @property
    def window(self) -> float:
        """The window that is wanted now; what the receiver has is one of its two neighbours."""
        return self._wanted

    @property
    def advice(self) -> str:
        """What the loop or its guard has to say at the moment; empty in everyday operation."""
        last = None if self.loop is None else self.loop.last
        return "" if last is None else "; ".join(filter(None, (last.reason, last.alert)))

    def receipts(self) -> list[Receipt]:
        """The newest receipts of the loop (where no other telemetry was asked for)."""
        return [] if self.runner is None else self.runner.receipts()

    def figures(self) -> dict[str, Any]:
        """Counts since the start."""
        handling, receiver = self._handling, self._receiver
        names = ("acked", "failed", "retried", "dead_lettered", "returned", "repeats")
        return {
            "handed": self._sensing.handed,
            **{name: 0 if handling is None else getattr(handling, name) for name in names},
            "in_flight": 0 if receiver is None else receiver.in_flight,
            "window": self._wanted,
            "goal": None if self._goal is None else str(self._goal),
            "rate_per_s": None if self.seen is None else self.seen.rate_per_s,
            "residence_s": None if self.seen is None else self.seen.residence_s,
            "depth": self._depth,
            "advice": self.advice,
        }

    # --- running ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish what is being handled, give back the rest, and end `run`. From the consumer's own event loop."""
        self._stop.set()

    async def run(self, *, seconds: float | None = None) -> None:
        """Consume until `stop`, or for so long."""
        async with await connect(self._url) as broker:
            self._broker = broker
            self._receiver = receiver = await self._open(broker)
            finished = None if self._idempotent is None else Finished(self._idempotent, self._place[0])
            self._handling = Handling(
                receiver,
                self._handler,
                self._sensing,
                concurrency=self._concurrency,
                timeout_s=self._timeout_s,
                retry=self._retry,
                bury=None if self._dead_letter == "broker" else self._bury,
                finished=finished,
                auto_ack=self._auto_ack,
            )
            beside = [asyncio.create_task(self._tick()), asyncio.create_task(self._look())]
            if self.runner is not None:
                beside.append(asyncio.create_task(self.runner.run()))
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, self._stop.set)
            try:
                await self._receive(receiver, self._handling, beside)
            finally:
                await self._close(beside)

    def run_blocking(self, *, seconds: float | None = None) -> None:
        """`run` for programs that are not asynchronous; Ctrl-C stops gracefully."""

        async def main() -> None:
            import signal

            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
                    loop.add_signal_handler(number, self.stop)
            await self.run(seconds=seconds)

        asyncio.run(main())

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        while self._handling is None and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await self._task

    async def _open(self, broker: Broker) -> Receiver:
        window = max(1, round(self._wanted))
        name, group = self._place
        if group is None:
            receiver = await broker.receiver(name, window=window)
        else:
            receiver = await broker.subscribe(name, group, window=window, start=self._start)
        if self._goal is not None:
            receiver.count_round_trip()
        return receiver

    async def _close(self, beside: list[asyncio.Task[None]]) -> None:
        assert self._handling is not None
        assert self._receiver is not None
        if self.runner is not None:
            self.runner.stop()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(beside[-1]), 2.0)
        try:
            await self._handling.stop(self._stop_timeout_s)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._receiver.close()
            if self._bury_sender is not None:
                await self._bury_sender.close()

    async def _receive(self, receiver: Receiver, handling: Handling, beside: list[asyncio.Task[None]]) -> None:
        while not self._stop.is_set():
            for task in beside:
                if task.done():
                    task.result()  # a broken helper ends the run with its error
            room = receiver.window - handling.under_way
            if room <= 0:
                handling.room.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(handling.room.wait(), DITHER_S)
                continue
            self._receiving_since_s = time.monotonic()
            try:
                deliveries = await receiver.receive(room, timeout_s=_WAIT_S)
            except (NoSuchChannel, LoginRefused, Unsupported):
                raise
            except BrokerError as error:
                log.warning("consumer %s: %s; trying again", self.name, error)
                await asyncio.sleep(_AGAIN_S)
                continue
            finally:
                self._receiving_since_s = None
            for delivery in deliveries:
                if self._pacing is not None and (pace := self._pace_per_s) is not None:
                    self._pacing, wait_s = take(self._pacing, time.monotonic(), pace)
                    if wait_s > 0.0:
                        await asyncio.sleep(wait_s)
                handling.begin(delivery)

    # --- sensor and actuator of the loop ------------------------------------------------------------------------

    def _sense(self) -> float | None:
        seen = self._sensing.sample(time.monotonic(), self._depth)
        if seen is None or self._goal is None or self.loop is None:
            return None
        if self._metric is not None and seen.rate_per_s is not None:
            seen = replace(seen, rate_per_s=self._metric(seen.rate_per_s))
        self.seen = seen
        self._aiming, self._target = aim(self._goal, self._aiming, seen)
        self.loop.goal = self._target.setpoint
        return self._target.measurement

    @property
    def _pace_per_s(self) -> float | None:
        """The rate of the token bucket; None until a drain knows its own."""
        if isinstance(self._goal, Rate):
            return self._goal.per_s
        return None if self._target is None else max(self._target.setpoint, 1e-3)

    def _act(self, window: float) -> None:
        self._wanted = window

    async def _tick(self) -> None:
        """Every 50 ms: look whether messages were lacking, and set the next whole window."""
        receiver = self._receiver
        assert receiver is not None
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + DITHER_S, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            since_s = self._receiving_since_s
            lacking = (
                since_s is not None
                and time.monotonic() - since_s > _LACKING_S
                and receiver.occupied < receiver.window
            )
            if (
                self._depth is None or self._depth >= 1.0
            ):  # an empty queue answers when a publisher sends, not before
                self._trip_s = receiver.round_trip_s
            self._sensing.tick(full=not lacking, round_trip_s=self._trip_s)
            if self.loop is not None and self.loop.mode == "on":
                wanted = max(self._wanted, WINDOW_LIMITS[0])
                if self._pacing is not None:
                    wanted = 2.0 * wanted + 1.0  # the bucket holds the rate: the window must not
                self._dithering, whole = dither_step(self._dithering, wanted)
                if whole != receiver.window:
                    receiver.set_window(whole)

    async def _look(self) -> None:
        """Once a second: how many wait."""
        name, group = self._place
        if self._goal is None or (group is not None and any(sign in name for sign in "*#")):
            return await asyncio.sleep(math.inf)  # nobody asks, or there is no one depth
        while True:
            broker, receiver = self._broker, self._receiver
            assert broker is not None
            assert receiver is not None
            try:
                depth = await broker.depth(name, group)
                self._depth = float(max(0, depth - (receiver.in_flight if group is not None else 0)))
            except BrokerError:
                self._depth = None
            period_s = 1.0 if self.loop is None else self.loop.period_s
            await asyncio.sleep(0.9 * period_s)

    async def _bury(self, message: Message) -> None:
        assert self._broker is not None
        if self._bury_sender is None:
            kind = "log" if self._place[1] is not None and not self._broker.capabilities.queues else "queue"
            await self._broker.declare(self._dead_letter, kind)  # type: ignore[arg-type]  # a literal, chosen above
            self._bury_sender = await self._broker.sender(self._dead_letter)
        (result,) = await self._bury_sender.send_batch([message])
        if result.error is not None:
            raise result.error


def _place(queue: str | None, channel: str | None, group: str | None) -> tuple[str, str | None]:
    if queue is not None and channel is None and group is None:
        return queue, None
    if queue is None and channel is not None and group is not None:
        return channel, group
    raise InvalidValue(
        "a consumer reads a queue, or a channel as a member of a group; "
        f"got queue={queue!r}, channel={channel!r}, group={group!r}"
    )


def _check(
    goal: Goal | None,
    controller: Regulator,
    mode: str,
    concurrency: int | None,
    handler_timeout_s: float | None,
    window: int | None,
    max_window: float,
    auto_ack: bool,
    pacing: bool,
) -> None:
    if auto_ack and goal is not None:
        raise InvalidValue(
            f"automatic acks and the goal {goal} do not go together: the broker counts a message as done when it "
            "has sent it, so a window means nothing; leave out auto_ack, or the goal"
        )
    if goal is None and (controller is not None or pacing):
        raise InvalidValue("a controller and pacing need a goal, such as goal='rate=400'")
    if pacing and isinstance(goal, Capacity | Latency):
        raise InvalidValue(f"pacing needs a goal that is a rate, not {goal}")
    if mode not in MODES:
        raise InvalidValue(f"the mode is one of {', '.join(MODES)}, got {mode!r}")
    if concurrency is not None and concurrency < 1:
        raise InvalidValue(f"concurrency is a number of handlers from 1, got {concurrency}")
    if handler_timeout_s is not None and not handler_timeout_s > 0:
        raise InvalidValue(f"handler_timeout_s is a time above 0 seconds, got {handler_timeout_s}")
    if window is not None and window < 1:
        raise InvalidValue(f"the window is a number of messages from 1, got {window}")
    if not 1 <= max_window <= 65_535:
        raise InvalidValue(f"max_window is from 1 to 65535 messages, got {max_window}")
