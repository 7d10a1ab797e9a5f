"""`Consumer`: takes messages, calls a handler, acknowledges, and holds a goal by what it lets be in flight.

    async def handle(message): ...
    await Consumer("amqp://localhost/", queue="orders", handler=handle, goal="rate=400").run()

`window_loop` is its loop, `receiver_window` sets the window, `dispatcher` calls the
handler and acknowledges.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from flyball.brokers import connect
from flyball.brokers.port import (
    Broker,
    BrokerError,
    Delivery,
    LoginRefused,
    NoSuchChannel,
    Receiver,
    Start,
    Unsupported,
    may_pass,
)
from flyball.consumer.dead_letters import DeadLetterChannel
from flyball.consumer.dispatcher import Dispatcher
from flyball.consumer.finished_store import FinishedStore
from flyball.consumer.handler import Handler, check_handler
from flyball.consumer.membership import Membership, member_url
from flyball.consumer.policy.controller import DITHER_S, WINDOW_LIMITS, ControllerOption
from flyball.consumer.policy.goals import ConsumerMeasurement, Goal, parse_goal
from flyball.consumer.policy.retry import RetryPolicy
from flyball.consumer.receiver_window import ReceiverWindow
from flyball.consumer.subscription import check_dead_letter, check_options, make_subscription
from flyball.control.record import LoopRecord, Mode
from flyball.errors import InvalidValue
from flyball.futures import wait_at_most
from flyball.groups.config import GroupConfig
from flyball.groups.policy.reports import HandOvers
from flyball.loops.loop import Loop
from flyball.loops.runner import Runner
from flyball.loops.telemetry.sink import Sink
from flyball.store.protocol import Database, StateStore

log = logging.getLogger("flyball.consumer")

_RECEIVE_TIMEOUT_S = 0.2  # receiving is never cancelled, for what came would then be lost
_RECEIVE_RETRY_S = 0.5
_REPORT_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Messages since the start, and what the last sample measured (None: nothing yet).

    `handed` were handed to handlers, `acked` are done, dead letters included; `failed` counts failures of
    handlers, `returned` went back to the broker, `repeats` came again and were not handled again, `unreadable`
    could not be decoded and are dead letters. Of those `in_flight`, `pausing` wait before they are tried again.
    `window` is how many may be in flight without those, `status` why the goal is not held, if so. A member of a
    group has `owned`, the queues that it reads with their generations, and counts the queues that it handed over:
    `clean_hand_overs` after all in flight was settled, `forced_hand_overs` with messages that went back.
    """

    handed: int
    acked: int
    failed: int
    retried: int
    dead_lettered: int
    returned: int
    repeats: int
    unreadable: int
    in_flight: int
    window: float
    goal: str | None
    rate_per_s: float | None
    residence_s: float | None
    depth: float | None
    status: str
    owned: Mapping[str, int] = field(default_factory=dict)
    clean_hand_overs: int = 0
    forced_hand_overs: int = 0
    pausing: int = 0


class Consumer:
    """A consumer of a queue, of a channel as a member of a group, or of the queues that it is granted in a group.

    `group="name"` with `channel` lets the broker share messages in the group. `group=GroupConfig(…)` alone makes
    it a member that is granted queues: each is read by one member at a time, in order, on RabbitMQ, Kafka and
    SQLite; `stats.owned` has them. When it stops, it hands them over and leaves.

    `async with Consumer(…)`: it runs in the background; at the end it finishes what is being handled, returns
    the rest and closes. `run` and `run_blocking` do the same until `stop`, or for a given time.

    `handler` takes a `Message`; a coroutine function runs on the event loop, any other in one of `concurrency`
    threads; if what it returns can be awaited, that is awaited as part of the handling. It may raise: the message
    is then tried again `retries` times after growing pauses, in which others are handled (with a window of 1 they
    wait, to keep the order), and after that goes to the channel `dead_letter` (default: the queue's name and
    ".dead"); with `dead_letter_exchange` it is rejected instead, so that the dead-letter exchange of its queue
    gets it. `handler_timeout_s` ends a coroutine; a thread cannot be ended, its message counts as failed and the
    thread is replaced.

    `goal` is "rate=400", "capacity", "latency=0.5", "drain-by=60" or an object of
    `flyball.consumer.policy.goals`; without one the window is fixed at `window`. `controller` is a name of the
    catalogue, a config ({"name": "pi", "kp": …}) or an object; default is Little's law with a trim. In the modes
    `advise` and `shadow` the window stays at `window` and `steps()` show the proposed windows; the default is
    `on`, since the window belongs to the consumer (a `Loop`, whose actuator belongs to your program, starts in
    `advise`). A rate is an upper bound with the default controller; `pacing` also hands messages over evenly.
    `metric` replaces the measured rate by what it returns for it (None: no measurement).

    `start` says where a new group begins: by default at the earliest message, since work that waits must not be
    skipped (`Broker.subscribe`, for programs that only follow, begins at the latest). `finished_store` is a
    database of `flyball.store` for finished ids across restarts; `store` is for the state of the loop,
    `telemetry` are sinks for its steps.
    """

    def __init__(
        self,
        url: str,
        *,
        handler: Handler,
        queue: str | None = None,
        channel: str | None = None,
        group: str | GroupConfig | None = None,
        start: Start = "earliest",
        goal: str | Goal | None = None,
        controller: ControllerOption = None,
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
        self._subscription = make_subscription(queue, channel, group)
        self._url, self._handler, self._start = url, handler, start
        check_handler(handler)
        parsed_goal = None if goal is None else parse_goal(goal)
        check_options(
            parsed_goal,
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
                f"dead_letter {dead_letter!r} and dead_letter_exchange exclude each other: dead letters go to a "
                "channel, or to the dead-letter exchange of the queue"
            )
        if dead_letter is not None:
            check_dead_letter(self._subscription, dead_letter)
        self._dead_letter = dead_letter or self._subscription.dead_letter_channel
        self._dead_letter_exchange = dead_letter_exchange
        self._auto_ack, self._stop_timeout_s = auto_ack, stop_timeout_s
        self._finished_store = finished_store
        self.name = name or self._subscription.name
        self._window = ReceiverWindow(
            self.name,
            parsed_goal,
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
        self._stop = threading.Event()
        self._reported, self._reported_s = "", 0.0
        self._receiver: Receiver | None = None
        self._dispatcher: Dispatcher | None = None
        self._membership: Membership | None = None

    # --- state and goal -----------------------------------------------------------------------------------------

    @property
    def goal(self) -> Goal | None:
        return self._window.goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        """Change the goal from the next sample on; the window starts from where it is."""
        self._window.goal = goal

    @property
    def window(self) -> float:
        """The window that the loop asks for; the receiver's is one of its two whole neighbours."""
        return self._window.command

    @property
    def measurement(self) -> ConsumerMeasurement | None:
        """What the last sample measured; None before the first, and without a goal."""
        return self._window.measurement

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
        dispatcher, receiver, measurement = self._dispatcher, self._receiver, self.measurement
        membership = self._membership
        hand_overs = HandOvers() if membership is None else membership.hand_overs
        return ConsumerStats(
            handed=self._window.metrics.handed,
            acked=0 if dispatcher is None else dispatcher.acked,
            failed=0 if dispatcher is None else dispatcher.failed,
            retried=0 if dispatcher is None else dispatcher.retried,
            dead_lettered=0 if dispatcher is None else dispatcher.dead_lettered,
            returned=0 if dispatcher is None else dispatcher.returned,
            repeats=0 if dispatcher is None else dispatcher.repeats,
            unreadable=0 if dispatcher is None else dispatcher.unreadable,
            in_flight=0 if receiver is None else receiver.in_flight,
            window=self.window,
            goal=None if self.goal is None else str(self.goal),
            rate_per_s=None if measurement is None else measurement.rate_per_s,
            residence_s=None if measurement is None else measurement.residence_s,
            depth=self._window.depth,
            status=self.status,
            owned={} if membership is None else membership.owned,
            clean_hand_overs=hand_overs.clean,
            forced_hand_overs=hand_overs.forced,
            pausing=0 if dispatcher is None else dispatcher.pausing,
        )

    # --- running ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish what is being handled, return the rest, and end `run`. Any thread may call it, a handler, too."""
        self._stop.set()

    async def run(self, *, seconds: float | None = None) -> None:
        """Consume until `stop`, or for `seconds`."""
        window, member = self._window, self._subscription.member
        async with await connect(self._url if member is None else member_url(self._url, member)) as broker:
            if self._dead_letter_exchange:
                await self._check_dead_letter_exchange(broker)
            self._receiver = receiver = await self._open(broker)
            dead_letters = DeadLetterChannel(
                broker,
                self._dead_letter,
                log=self._subscription.group is not None and not broker.capabilities.queues,
            )
            self._dispatcher = dispatcher = Dispatcher(
                receiver,
                self._handler,
                window,
                concurrency=self._concurrency,
                timeout_s=self._timeout_s,
                retry=self._retry,
                dead_letter_sink=None if self._dead_letter_exchange else dead_letters.store,
                finished_store=None
                if self._finished_store is None
                else FinishedStore(self._finished_store, self._subscription.name),
                is_pattern=self._subscription.has_many_channels,
                dead_letter_channel=self._dead_letter,
                auto_ack=self._auto_ack,
            )
            tasks = [
                asyncio.create_task(window.tick(receiver)),
                asyncio.create_task(window.read_depth(receiver, self._depth_sensor(broker, receiver))),
            ]
            if self._membership is not None:
                tasks.append(asyncio.create_task(self._membership.wait()))
            if self.runner is not None:
                tasks.append(asyncio.create_task(self.runner.run()))
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, self._stop.set)
            try:
                await self._receive(receiver, dispatcher, tasks)
            finally:
                await self._close(receiver, dispatcher, dead_letters, tasks)

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
            while self._dispatcher is None and not self._task.done():
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
            raise ended[0]  # else the program's own error is raised

    async def _check_dead_letter_exchange(self, broker: Broker) -> None:
        """Refuse to reject messages that the broker would then drop."""
        name, group = self._subscription.name, self._subscription.group
        present = await broker.has_dead_letter_exchange(name) if group is None else None
        if present is False or not broker.capabilities.queues:
            raise Unsupported(
                f"{name!r} has no dead-letter exchange, so that rejected messages would be lost: leave out "
                "dead_letter_exchange, or declare the queue with one (RabbitMQ)"
            )
        if present is None:
            log.warning(
                "%s: failed messages are rejected, and RabbitMQ drops them unless the queue has a dead-letter "
                "exchange; the URL's option management lets Flyball check that",
                name,
            )

    async def _open(self, broker: Broker) -> Receiver:
        window = self._window.whole
        name, group = self._subscription.name, self._subscription.group
        member = self._subscription.member
        receiver: Receiver
        if member is not None:
            self._membership = await Membership.open(broker, member, window=window, start=self._start)
            receiver = self._membership.receiver
        elif group is None:
            receiver = await broker.receiver(name, window=window)
        else:
            receiver = await broker.subscribe(name, group, window=window, start=self._start)
        if self.goal is not None:
            receiver.count_round_trip()
        return receiver

    def _depth_sensor(self, broker: Broker, receiver: Receiver) -> Callable[[], Awaitable[int]] | None:
        """How many messages wait; None: of a pattern that is not known."""
        subscription = self._subscription
        if self._membership is not None:
            return self._membership.depth
        if subscription.is_pattern:
            return None

        async def count_waiting() -> int:
            depth = await broker.depth(subscription.name, subscription.group)
            return max(0, depth - (receiver.in_flight if subscription.group is not None else 0))

        return count_waiting

    async def _receive(
        self, receiver: Receiver, dispatcher: Dispatcher, tasks: Sequence[asyncio.Task[None]]
    ) -> None:
        """Hand messages over as the window allows, until `stop`, or until one of `tasks` fails."""
        while not self._stop.is_set():
            for task in tasks:
                if task.done():
                    task.result()
            free = receiver.window - dispatcher.active
            if free <= 0:
                dispatcher.slot_free.clear()
                with suppress(TimeoutError):
                    await wait_at_most(dispatcher.slot_free.wait(), DITHER_S)
                continue
            count, wait_s = self._window.may_receive(free)
            if not count:
                await asyncio.sleep(min(wait_s, DITHER_S))
                continue
            for delivery in await self._next_deliveries(receiver, count):
                self._window.use_pace()
                dispatcher.begin(delivery)

    async def _next_deliveries(self, receiver: Receiver, limit: int) -> Sequence[Delivery]:
        self._window.asking_since_s = time.monotonic()
        try:
            return await receiver.receive(limit, timeout_s=_RECEIVE_TIMEOUT_S)
        except BrokerError as error:
            # Its queue was there when it began: one that was deleted or forbidden since may come back.
            if not may_pass(error) and not isinstance(error, NoSuchChannel | LoginRefused):
                raise
            self._report(error)
            await asyncio.sleep(_RECEIVE_RETRY_S)
            return []
        finally:
            self._window.asking_since_s = None

    def _report(self, error: BrokerError) -> None:
        """Log why nothing is received: once, and again every minute while it lasts."""
        now_s = time.monotonic()
        if str(error) != self._reported or now_s - self._reported_s > _REPORT_EVERY_S:
            self._reported, self._reported_s = str(error), now_s
            log.warning("consumer %s: %s; trying again", self.name, error)

    async def _close(
        self,
        receiver: Receiver,
        dispatcher: Dispatcher,
        dead_letters: DeadLetterChannel,
        tasks: list[asyncio.Task[None]],
    ) -> None:
        if self.runner is not None:
            self.runner.stop()
            with suppress(TimeoutError):
                await wait_at_most(asyncio.shield(tasks[-1]), 2.0)
        try:
            for delivery in await receiver.withdraw():  # messages that must not be returned are handled
                dispatcher.begin(delivery)
            await dispatcher.stop(self._stop_timeout_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._membership is not None:
                await self._membership.leave()
            await receiver.close()
            await dead_letters.close()
