"""Call the handler for each message and settle it: acknowledge, retry, dead-letter or return it.

A message occupies a slot of the window from its delivery until it is settled. `policy.retry` decides, this module
acts. A message that comes back while its handler still runs, or after it was done, is not handled again: the
connection was lost between the handler and the acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from flyball.backoff import delays_s
from flyball.brokers.core.dedup import FinishedIds
from flyball.brokers.port import BrokerError, Delivery, Message, Receiver
from flyball.consumer.finished_store import FinishedStore
from flyball.consumer.handler import Handler, awaitable_of, is_async
from flyball.consumer.handler_threads import HandlerThreads
from flyball.consumer.metrics import WindowMetrics
from flyball.consumer.policy.retry import RetryPolicy, decide_after_failure

log = logging.getLogger("flyball.consumer")

DeadLetterSink: TypeAlias = Callable[[Message], Awaitable[None]]

_DEAD_LETTER_RETRY_S = 1.0


class Dispatcher:
    """The messages that are being handled.

    `dead_letter_sink` stores a dead letter, or raises `BrokerError`; None: dead letters are rejected.
    """

    def __init__(
        self,
        receiver: Receiver,
        handler: Handler,
        metrics: WindowMetrics,
        *,
        concurrency: int | None,
        timeout_s: float | None,
        retry: RetryPolicy,
        dead_letter_sink: DeadLetterSink | None,
        finished_store: FinishedStore | None,
        auto_ack: bool,
    ) -> None:
        self._receiver = receiver
        self._handler = handler
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._retry = retry
        self._dead_letter_sink = dead_letter_sink
        self._finished_store = finished_store
        self._auto_ack = auto_ack
        blocking = not is_async(handler)
        self._threads = HandlerThreads(concurrency or DEFAULT_THREADS) if blocking else None
        self._slots = asyncio.Semaphore(concurrency) if concurrency is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._finished = FinishedIds()
        self._done: list[tuple[Delivery, float]] = []  # and when the handler ended
        self._wake_acker = asyncio.Event()
        self._acker = asyncio.create_task(self._acknowledge())
        self._stopping = asyncio.Event()
        self._all_handled = False
        self.slot_free = asyncio.Event()
        self.failed = self.retried = self.dead_lettered = self.returned = self.acked = self.repeats = 0

    @property
    def active(self) -> int:
        """Messages that are not settled yet."""
        return len(self._tasks)

    def begin(self, delivery: Delivery) -> None:
        """Start to handle a delivery."""
        task = asyncio.create_task(self._process(delivery, time.monotonic()))
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.slot_free.set()
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "a message could not be settled and goes back when the consumer stops", exc_info=task.exception()
            )

    async def stop(self, timeout_s: float) -> None:
        """Let handlers finish for `timeout_s`; the messages of the others go back when the receiver closes."""
        self._stopping.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)
        self._all_handled = True
        self._wake_acker.set()
        await self._acker  # not cancelled: what it is sending would be lost, and handled again after a restart
        await self._flush()  # what was handled while it was sending
        if self._threads is not None:
            self._threads.close()

    # --- one message ------------------------------------------------------------------------------------------

    async def _process(self, delivery: Delivery, received_s: float) -> None:
        id = delivery.message.id
        if await self._is_repeat(delivery):
            self.repeats += 1
            self._queue_ack(delivery, time.monotonic())
            return
        if self._auto_ack:
            self._queue_ack(delivery, received_s)
        task = asyncio.current_task()
        assert task is not None
        self._running[id] = task
        try:
            if not await self._handle(delivery):
                return  # it was returned
        finally:
            if self._running.get(id) is task:
                del self._running[id]
        now_s = time.monotonic()
        self._finished.add((id,), now_s)
        if self._finished_store is not None:
            await asyncio.to_thread(self._finished_store.mark, (id,))
        event_s = delivery.message.event_time_s
        self._metrics.add_finished(
            now_s - received_s, None if event_s is None else max(0.0, time.time() - event_s)
        )
        if not self._auto_ack:
            self._queue_ack(delivery, now_s)

    async def _is_repeat(self, delivery: Delivery) -> bool:
        id = delivery.message.id
        running = self._running.get(id)
        if running is not None:
            await asyncio.wait({running})
        if (running is not None or delivery.redelivered) and self._finished.contains(id, time.monotonic()):
            return True
        if self._finished_store is not None:
            return bool(await asyncio.to_thread(self._finished_store.find, (id,)))
        return False

    async def _handle(self, delivery: Delivery) -> bool:
        """Handle a message until it is done or a dead letter: True; or until it was returned: False."""
        failures, delays = 0, None
        while True:
            error = await self._try(delivery, first=failures == 0)
            if error is None:
                return True
            if error is _RETURNED:
                return False
            failures += 1
            self.failed += 1
            if delays is None:
                policy = self._retry
                delays = delays_s(policy.retries, first_s=policy.first_s, longest_s=policy.longest_s)
            decision = decide_after_failure(self._retry, failures, _describe(error), next(delays, 0.0))
            if decision.action == "dead-letter":
                return await self._dead_letter(delivery, decision.reason)
            self.retried += 1
            if await self._stops_within(decision.delay_s) and self._receiver.may_return(delivery):
                await self._return(delivery)
                return False

    async def _try(self, delivery: Delivery, *, first: bool) -> BaseException | None:
        if self._slots is None:
            return await self._call(delivery, first=first)
        async with self._slots:
            if self._stopping.is_set() and self._receiver.may_return(delivery):
                await self._return(delivery)  # it waited for a handler and got none before the stop
                return _RETURNED
            return await self._call(delivery, first=first)

    async def _call(self, delivery: Delivery, *, first: bool) -> BaseException | None:
        if first:
            self._metrics.handed += 1
        limit = None if self._timeout_s is None else asyncio.timeout(self._timeout_s)  # 2 µs if unused
        try:
            if limit is None:
                await self._invoke(delivery.message)
            else:
                async with limit:
                    await self._invoke(delivery.message)
        except TimeoutError as error:
            if limit is not None and limit.expired():
                return TimeoutError(f"the handler took longer than {self._timeout_s} s")
            return error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the consumer stops
            return RuntimeError("a task that the handler awaited was cancelled")
        except Exception as error:  # noqa: BLE001 – a handler may raise anything; its message is tried again
            return error
        return None

    async def _invoke(self, message: Message) -> None:
        """Call the handler, and await its result if that can be awaited."""
        if self._threads is None:
            result = self._handler(message)
        else:
            result = await self._threads.call(self._handler, message)
        before = None
        while result is not before and (work := awaitable_of(result)) is not None:
            before, result = result, await work  # some objects return themselves

    async def _dead_letter(self, delivery: Delivery, reason: str) -> bool:
        """Store a dead letter, however long that takes; it is never dropped."""
        log.warning("message %s of %s becomes a dead letter: %s", delivery.message.id, delivery.channel, reason)
        if self._dead_letter_sink is None:
            self.dead_lettered += 1
            await self._receiver.nack(delivery, requeue=False)
            return False
        headers = {**delivery.message.headers, "flyball-error": reason, "flyball-channel": delivery.channel}
        while True:
            try:
                await self._dead_letter_sink(replace(delivery.message, headers=headers))
            except BrokerError as error:
                log.warning("the dead letter %s cannot be stored yet: %s", delivery.message.id, error)
                if await self._stops_within(_DEAD_LETTER_RETRY_S):
                    await self._return(delivery)
                    return False
            else:
                self.dead_lettered += 1
                return True

    async def _stops_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # --- acknowledgements -------------------------------------------------------------------------------------

    async def _return(self, delivery: Delivery) -> None:
        self.returned += 1
        await self._receiver.nack(delivery)

    def _queue_ack(self, delivery: Delivery, ended_s: float) -> None:
        self._done.append((delivery, ended_s))
        self._wake_acker.set()

    async def _acknowledge(self) -> None:
        while not self._all_handled:
            await self._wake_acker.wait()
            self._wake_acker.clear()
            await self._flush()

    async def _flush(self) -> None:
        done, self._done = self._done, []
        if done:
            now_s = time.monotonic()
            self._metrics.add_wait(sum(now_s - ended_s for _, ended_s in done))
            try:
                await self._receiver.ack(*(delivery for delivery, _ in done))
            except BrokerError as error:  # they will be delivered again, and recognised
                log.warning("%d acknowledgements did not reach the broker: %s", len(done), error)
            except Exception:  # a fault of a client library must not end the acknowledging of all that follow
                log.exception(
                    "%d acknowledgements failed in a way that no broker error describes; these messages go back "
                    "when the consumer stops",
                    len(done),
                )
            self.acked += len(done)


_RETURNED = BaseException("returned")
DEFAULT_THREADS = 32


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
