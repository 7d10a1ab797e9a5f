"""Call the handler for each message and settle it: acknowledge, retry, dead-letter or return it.

A message occupies a slot of the window from its delivery until it is settled, but for its pauses before retries
(`retry_pauses`). `policy.retry` decides, this module acts. An unreadable message becomes a dead letter at once.
One that comes back while its handler still runs, or after it was done, is not handled again: the connection was
lost between the handler and the acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar

from flyball.backoff import ENDLESS, delays_s
from flyball.brokers.core.dedup import FinishedIds
from flyball.brokers.port import BrokerError, Delivery, Message, Receiver
from flyball.consumer.dead_letters import ERROR, to_dead_letter, to_plain_text
from flyball.consumer.finished_store import FinishedStore
from flyball.consumer.handler import Handler, awaitable_of, is_async
from flyball.consumer.handler_threads import HandlerThreads
from flyball.consumer.policy.retry import RetryPolicy, decide_after_failure
from flyball.consumer.receiver_window import ReceiverWindow
from flyball.consumer.retry_pauses import RetryPauses
from flyball.futures import wait_at_most

log = logging.getLogger("flyball.consumer")

DeadLetterSink: TypeAlias = Callable[[Message], Awaitable[None]]

_DEAD_LETTER_RETRY_S = 1.0
_Result = TypeVar("_Result")


class Dispatcher:
    """The messages that are being handled.

    `dead_letter_sink` stores a dead letter, or raises `BrokerError`; None: dead letters are rejected.
    """

    def __init__(
        self,
        receiver: Receiver,
        handler: Handler,
        window: ReceiverWindow,
        *,
        concurrency: int | None,
        timeout_s: float | None,
        retry: RetryPolicy,
        dead_letter_sink: DeadLetterSink | None,
        finished_store: FinishedStore | None,
        is_pattern: bool,
        dead_letter_channel: str,
        auto_ack: bool,
    ) -> None:
        self._receiver = receiver
        self._handler = handler
        self._metrics = window.metrics
        self._timeout_s = timeout_s
        self._retry = retry
        self._dead_letter_sink = dead_letter_sink
        self._finished_store = finished_store
        self._is_pattern = is_pattern
        self._dead_letter_channel = dead_letter_channel
        self._auto_ack = auto_ack
        blocking = not is_async(handler)
        threads = concurrency or DEFAULT_THREADS
        self._threads = HandlerThreads(threads) if blocking else None
        self._free_threads = asyncio.Semaphore(threads)
        self._slots = asyncio.Semaphore(concurrency) if concurrency is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}  # by channel and id
        self._finished = FinishedIds()
        self._done: list[tuple[Delivery, float]] = []  # and when the handler ended
        self._wake_acker = asyncio.Event()
        self._acker = asyncio.create_task(self._acknowledge())
        self._stopping = asyncio.Event()
        self._all_handled = False
        self.slot_free = asyncio.Event()
        self._pauses = RetryPauses(
            window, receiver, unsettled=lambda: len(self._tasks), on_slots=self.slot_free.set
        )
        self.failed = self.retried = self.dead_lettered = self.returned = self.acked = self.repeats = 0
        self.unreadable = 0

    @property
    def active(self) -> int:
        """Messages that are not settled yet."""
        return len(self._tasks)

    @property
    def pausing(self) -> int:
        """Those of them that wait before they are tried again."""
        return self._pauses.count

    def begin(self, delivery: Delivery) -> None:
        """Start to handle a delivery."""
        task = asyncio.create_task(self._process(delivery, time.monotonic()))
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pauses.fill_slots()
        self.slot_free.set()
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "a message could not be settled and goes back when the consumer stops", exc_info=task.exception()
            )

    async def stop(self, timeout_s: float) -> None:
        """Let handlers finish for `timeout_s`; the messages of the others go back when the receiver closes."""
        self._stopping.set()
        self._pauses.stop()
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
        key = delivery.channel, delivery.message.id
        if delivery.channel == self._dead_letter_channel and ERROR in delivery.message.headers:
            # A pattern covers the channel of its own dead letters: to handle them again would never end.
            self._queue_ack(delivery, received_s)
            return
        if await self._is_repeat(delivery):
            self.repeats += 1
            self._queue_ack(delivery, time.monotonic())
            return
        if self._auto_ack:
            self._queue_ack(delivery, received_s)
        task = asyncio.current_task()
        assert task is not None
        self._running[key] = task
        try:
            since_s = await self._handle(delivery, received_s)
            if since_s is None:
                return  # it was returned
        finally:
            if self._running.get(key) is task:
                del self._running[key]
        now_s = time.monotonic()
        self._finished.add((key,), now_s)
        if self._finished_store is not None:
            names = self._stored_names(delivery)[:1]
            await self._ask_store(partial(self._finished_store.mark, names))
        event_s = delivery.message.event_time_s
        self._metrics.add_finished(now_s - since_s, None if event_s is None else max(0.0, time.time() - event_s))
        if not self._auto_ack:
            self._queue_ack(delivery, now_s)

    async def _is_repeat(self, delivery: Delivery) -> bool:
        key = delivery.channel, delivery.message.id
        running = self._running.get(key)
        if running is not None:
            await asyncio.wait({running})
        if (running is not None or delivery.redelivered) and self._finished.contains(key, time.monotonic()):
            return True
        if self._finished_store is not None:
            return bool(await self._ask_store(partial(self._finished_store.find, self._stored_names(delivery))))
        return False

    async def _ask_store(self, call: Callable[[], _Result]) -> _Result:
        """Ask the store of finished ids, again while it fails: its file may be locked, or its disk full.

        A message whose handler is done must not go back, and one that was never handed over keeps its slot only
        while it waits. After a stop the failure is raised, and the message goes back.
        """
        for delay_s in delays_s(ENDLESS, longest_s=2.0):
            try:
                return await asyncio.to_thread(call)
            except Exception as error:
                if self._stopping.is_set():
                    raise
                log.warning("the store of finished ids does not answer, trying again: %s", error)
            await self._stops_within(delay_s)
        raise AssertionError("the delays have no end")

    def _stored_names(self, delivery: Delivery) -> tuple[str, ...]:
        """By what the store knows a message: the name that is marked, then one that a handler may have marked.

        Ids are unique within a channel, and a pattern covers several; but a handler knows the id alone.
        """
        id = delivery.message.id
        return (f"{delivery.channel} {id}", id) if self._is_pattern else (id,)

    async def _handle(self, delivery: Delivery, since_s: float) -> float | None:
        """Handle a message, which has a slot since `since_s`, until it is done or a dead letter.

        Returns since when it has its slot, which it leaves for its pauses; None: it was returned.
        """
        if delivery.unreadable is not None:
            self.unreadable += 1
            return since_s if await self._dead_letter(delivery, f"unreadable: {delivery.unreadable}") else None
        failures, delays = 0, None
        while True:
            error = await self._try(delivery, first=failures == 0)
            if error is _RETURNED:
                return None
            if failures == 0:
                self._pauses.add_first_attempt(failed=error is not None)
            if error is None:
                return since_s
            failures += 1
            self.failed += 1
            if delays is None:
                policy = self._retry
                delays = delays_s(policy.retries, first_s=policy.first_s, longest_s=policy.longest_s)
            decision = decide_after_failure(self._retry, failures, _describe(error), next(delays, 0.0))
            if decision.action == "dead-letter":
                return since_s if await self._dead_letter(delivery, decision.reason) else None
            self.retried += 1
            self._metrics.add_wait(time.monotonic() - since_s)
            stopping = await self._pauses.pause(self._stops_within(decision.delay_s))
            if stopping and self._receiver.may_return(delivery):
                await self._return(delivery)
                return None
            since_s = time.monotonic()

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
                await self._invoke(delivery.message, None)
            else:
                async with limit:
                    await self._invoke(delivery.message, limit)
        except TimeoutError as error:
            if limit is not None and limit.expired():
                return TimeoutError(f"the handler took longer than {self._timeout_s} s")
            return error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the consumer stops
            return RuntimeError("a task that the handler awaited was cancelled")
        except (KeyboardInterrupt, SystemExit):
            raise  # the program ends
        except GeneratorExit as error:
            if not _is_loop_running():
                raise  # nobody awaits this coroutine any more
            return error
        except BaseException as error:  # noqa: BLE001 – a handler may raise anything; its message is tried again
            return error
        return None

    async def _invoke(self, message: Message, limit: asyncio.Timeout | None) -> None:
        """Call the handler, and await its result if that can be awaited.

        Its time limit begins when it has a thread: a handler that was never called has not taken too long.
        """
        if self._threads is None:
            result = self._handler(message)
        else:
            if limit is not None:
                limit.reschedule(None)
            async with self._free_threads:
                if limit is not None and self._timeout_s is not None:
                    limit.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                result = await self._threads.call(self._handler, message)
        before = None
        while result is not before and (work := awaitable_of(result)) is not None:
            before, result = result, await work  # some objects return themselves

    async def _dead_letter(self, delivery: Delivery, reason: str) -> bool:
        """Store a dead letter, however long that takes; it is never dropped."""
        text = to_plain_text(reason)
        log.warning("message %s of %s becomes a dead letter: %s", delivery.message.id, delivery.channel, text)
        if self._dead_letter_sink is None:
            self.dead_lettered += 1
            await self._settle(1, lambda: self._receiver.nack(delivery, requeue=False))
            return False
        letter = to_dead_letter(delivery, reason)
        while True:
            try:
                await self._dead_letter_sink(letter)
            except Exception as error:  # noqa: BLE001 - whatever it is, the message is not settled
                log.warning("the dead letter %s cannot be stored yet: %s", delivery.message.id, error)
                if await self._stops_within(_DEAD_LETTER_RETRY_S):
                    await self._return(delivery)
                    return False
            else:
                self.dead_lettered += 1
                return True

    async def _stops_within(self, seconds: float) -> bool:
        try:
            await wait_at_most(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # --- acknowledgements -------------------------------------------------------------------------------------

    async def _return(self, delivery: Delivery) -> None:
        self.returned += 1
        await self._settle(1, lambda: self._receiver.nack(delivery))

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
            await self._settle(len(done), lambda: self._receiver.ack(*(delivery for delivery, _ in done)))
            self.acked += len(done)

    async def _settle(self, count: int, settle: Callable[[], Awaitable[None]]) -> None:
        """Settle messages, again while the broker fails: it may keep them in flight, and their slots with them."""
        for delay_s in delays_s(ENDLESS, longest_s=2.0):
            stopping = self._stopping.is_set()
            try:
                await settle()
            except BrokerError as error:
                log.warning("%d acknowledgements did not reach the broker: %s", count, error)
                if stopping:
                    return  # they will be delivered again, and recognised
            except Exception:  # a fault of a client library must not end the acknowledging of all that follow
                log.exception(
                    "%d acknowledgements failed in a way that no broker error describes; these messages go back "
                    "when the consumer stops",
                    count,
                )
                return
            else:
                return
            await self._stops_within(delay_s)


_RETURNED = BaseException("returned")
DEFAULT_THREADS = 32


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 – the error is the user's, and so is its __str__
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
