"""`Consumer`: takes messages, calls a handler, acknowledges, and holds a goal by what it lets be in flight.

    async def handle(message): ...
    await Consumer("amqp://localhost/", queue="orders", handler=handle, goal="rate=400").run()

`window_loop` is its loop, `receiver_window` sets the window, `receive` takes messages, `dispatcher` calls the
handler and acknowledges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from flyball.brokers import connect
from flyball.brokers.port import Broker, Receiver, Start
from flyball.consumer.dead_letters import DeadLetters
from flyball.consumer.dispatcher import Handling
from flyball.consumer.finished_store import Finished
from flyball.consumer.handler import Handler, check_handler
from flyball.consumer.policy import WINDOW_LIMITS, Goal, Regulator, RetryPolicy, Seen, parse_goal
from flyball.consumer.receive import receive_until
from flyball.consumer.receiver_window import ReceiverWindow
from flyball.consumer.subscription import check_wishes, place
from flyball.control.record import LoopRecord, Mode
from flyball.errors import InvalidValue
from flyball.loops.loop import Loop
from flyball.loops.runner import Runner
from flyball.loops.telemetry.sink import Sink
from flyball.store.protocol import Database, StateStore


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Messages since the start, and what the last sample measured (None: nothing yet).

    `handed` were given to handlers, `acked` are done, dead letters included; `failed` counts failures of handlers,
    `returned` what went back to the broker, `repeats` what was not handled again. `window` is how many may be in
    flight, `status` what there is to say about the goal.
    """

    handed: int
    acked: int
    failed: int
    retried: int
    dead_lettered: int
    returned: int
    repeats: int
    in_flight: int
    window: float
    goal: str | None
    rate_per_s: float | None
    residence_s: float | None
    depth: float | None
    status: str


class Consumer:
    """Consumes a queue, or a channel as a member of a group.

    `async with Consumer(…)`: entered, it runs in the background; left, it finishes what is being handled, gives
    the rest back and closes. `run` and `run_blocking` do the same until `stop`, or for a given time.

    `handler` takes a `Message`; a coroutine function runs on the event loop, any other in one of `concurrency`
    threads; if what it returns can be awaited, that is awaited as part of the handling. It may raise: the message
    is then tried again `retries` times with growing pauses, and after that goes to the channel `dead_letter`
    (default: the queue's name and ".dead"); with `dead_letter_exchange` it is rejected instead, so that the
    dead-letter exchange of its queue gets it. `handler_timeout_s` ends a coroutine; a thread cannot be ended, its
    message counts as failed and the thread is replaced.

    `goal` is "rate=400", "capacity", "latency=0.5", "drain-by=60" or an object of `flyball.consumer.policy.goals`;
    without one the window is fixed at `window`. `controller` is a name of the catalogue, a config
    ({"name": "pi", "kp": …}) or an object; default is Little's law with a trim. In the modes `advise` and
    `shadow` the window stays at `window` and `steps()` say what would be done; the default is `on`, since the
    window is the consumer's own (a `Loop`, which moves something of yours, starts in `advise`). `pacing` also
    hands messages over evenly, by a token bucket. `metric` replaces the measured rate by what it returns for it
    (None: no measurement).

    `start` says where a new group begins: by default at the earliest message, since work that waits must not be
    skipped (`Broker.subscribe`, for programs that only follow, begins at the latest). `finished_store` is a
    database of `flyball.store` that remembers finished ids across restarts; `store` keeps the state of the loop,
    `telemetry` are sinks for its steps.
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
        dead_letter_exchange: bool = False,
        window: int | None = None,
        max_window: float = WINDOW_LIMITS[1],
        pacing: bool = False,
        auto_ack: bool = False,
        period_s: float = 1.0,
        metric: Callable[[float], float | None] | None = None,
        finished_store: Database | None = None,
        telemetry: Sequence[Sink] | None = None,
        store: StateStore | None = None,
        stop_timeout_s: float = 30.0,
        name: str | None = None,
    ) -> None:
        self._place = place(queue, channel, group)
        self._url, self._handler, self._start = url, handler, start
        check_handler(handler)
        wanted = None if goal is None else parse_goal(goal)
        check_wishes(
            wanted,
            controller,
            mode=mode,
            concurrency=concurrency,
            handler_timeout_s=handler_timeout_s,
            window=window,
            max_window=max_window,
            auto_ack=auto_ack,
            pacing=pacing,
        )
        self._concurrency, self._timeout_s = concurrency, handler_timeout_s
        self._retry = retries if isinstance(retries, RetryPolicy) else RetryPolicy(retries)
        if dead_letter is not None and dead_letter_exchange:
            raise InvalidValue(
                f"dead letters go to the channel {dead_letter!r} or to the queue's dead-letter exchange: "
                "leave out dead_letter or dead_letter_exchange"
            )
        self._dead_letter = dead_letter or self._place.dead_letter
        self._dead_letter_exchange = dead_letter_exchange
        self._auto_ack, self._stop_timeout_s = auto_ack, stop_timeout_s
        self._finished_store = finished_store
        self.name = name or self._place.name
        self._window = ReceiverWindow(
            self.name,
            wanted,
            controller,
            mode=mode,
            window=window,
            max_window=max_window,
            pacing=pacing,
            period_s=period_s,
            metric=metric,
            telemetry=telemetry,
            store=store,
        )
        self._stop = asyncio.Event()
        self._receiver: Receiver | None = None
        self._handling: Handling | None = None

    # --- what a program sees and changes while it runs ----------------------------------------------------------

    @property
    def goal(self) -> Goal | None:
        return self._window.goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        """Another goal from the next sample on; the window starts from where it is."""
        self._window.goal = goal

    @property
    def window(self) -> float:
        """The window that is wanted now; what the receiver has is one of its two neighbours."""
        return self._window.command

    @property
    def seen(self) -> Seen | None:
        """What was seen of the last sample; None before the first, and without a goal."""
        return self._window.seen

    @property
    def loop(self) -> Loop | None:
        return self._window.loop

    @property
    def runner(self) -> Runner | None:
        return self._window.runner

    @property
    def status(self) -> str:
        """What the loop or its guard has to say at the moment; empty in everyday operation."""
        return self._window.status

    def steps(self) -> list[LoopRecord]:
        """The newest steps of the loop, oldest first (where no other telemetry was asked for)."""
        return [] if self.runner is None else self.runner.records()

    @property
    def stats(self) -> ConsumerStats:
        """Counts since the start, and the last sample."""
        handling, receiver, seen = self._handling, self._receiver, self.seen
        return ConsumerStats(
            handed=self._window.metrics.handed,
            acked=0 if handling is None else handling.acked,
            failed=0 if handling is None else handling.failed,
            retried=0 if handling is None else handling.retried,
            dead_lettered=0 if handling is None else handling.dead_lettered,
            returned=0 if handling is None else handling.returned,
            repeats=0 if handling is None else handling.repeats,
            in_flight=0 if receiver is None else receiver.in_flight,
            window=self.window,
            goal=None if self.goal is None else str(self.goal),
            rate_per_s=None if seen is None else seen.rate_per_s,
            residence_s=None if seen is None else seen.residence_s,
            depth=self._window.depth,
            status=self.status,
        )

    # --- running ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish what is being handled, give back the rest, and end `run`. From the consumer's own event loop."""
        self._stop.set()

    async def run(self, *, seconds: float | None = None) -> None:
        """Consume until `stop`, or for so long."""
        window = self._window
        async with await connect(self._url) as broker:
            self._receiver = receiver = await self._open(broker)
            dead_letters = DeadLetters(
                broker, self._dead_letter, log=self._place.group is not None and not broker.capabilities.queues
            )
            self._handling = handling = Handling(
                receiver,
                self._handler,
                window.metrics,
                concurrency=self._concurrency,
                timeout_s=self._timeout_s,
                retry=self._retry,
                bury=None if self._dead_letter_exchange else dead_letters.store,
                finished=None
                if self._finished_store is None
                else Finished(self._finished_store, self._place.name),
                auto_ack=self._auto_ack,
            )
            beside = [
                asyncio.create_task(window.tick(receiver)),
                asyncio.create_task(window.look(broker, receiver, self._place)),
            ]
            if self.runner is not None:
                beside.append(asyncio.create_task(self.runner.run()))
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, self._stop.set)
            try:
                await receive_until(self._stop, receiver, handling, window, beside, self.name)
            finally:
                await self._close(receiver, handling, dead_letters, beside)

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
        try:
            while self._handling is None and not self._task.done():
                await asyncio.sleep(0.005)
        except BaseException:
            self.stop()
            await asyncio.gather(self._task, return_exceptions=True)
            raise
        if self._task.done():
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        ended = await asyncio.gather(self._task, return_exceptions=True)
        if kind is None and isinstance(ended[0], BaseException):
            raise ended[0]  # else the program's own error is the one that counts

    async def _open(self, broker: Broker) -> Receiver:
        window = max(1, round(self.window))
        name, group = self._place.name, self._place.group
        if group is None:
            receiver = await broker.receiver(name, window=window)
        else:
            receiver = await broker.subscribe(name, group, window=window, start=self._start)
        if self.goal is not None:
            receiver.count_round_trip()
        return receiver

    async def _close(
        self,
        receiver: Receiver,
        handling: Handling,
        dead_letters: DeadLetters,
        beside: list[asyncio.Task[None]],
    ) -> None:
        if self.runner is not None:
            self.runner.stop()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(beside[-1]), 2.0)
        try:
            for delivery in await receiver.withdraw():  # what may not go back is handled
                handling.begin(delivery)
            await handling.stop(self._stop_timeout_s)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await receiver.close()
            await dead_letters.close()
