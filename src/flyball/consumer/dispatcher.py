"""Calls the handler for each message and settles it: done, tried again, dead-lettered or given back.

A message keeps its place in the window from being taken to being settled. What the policy decides (`settling`) is
carried out here. A message that comes back while its handler still runs, or after it was done, is not handled
again: the connection was lost between the handler and the acknowledgement.
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
from flyball.consumer.finished_store import Finished
from flyball.consumer.handler import Handler, is_async, pending
from flyball.consumer.handler_threads import Workers
from flyball.consumer.metrics import Sensing
from flyball.consumer.policy.retry import RetryPolicy, decide_after_failure

log = logging.getLogger("flyball.consumer")

Bury: TypeAlias = Callable[[Message], Awaitable[None]]

_BURY_AGAIN_S = 1.0


class Handling:
    """The messages that are being handled. `bury` stores a dead letter, or raises `BrokerError`."""

    def __init__(
        self,
        receiver: Receiver,
        handler: Handler,
        sensing: Sensing,
        *,
        concurrency: int | None,
        timeout_s: float | None,
        retry: RetryPolicy,
        bury: Bury | None,
        finished: Finished | None,
        auto_ack: bool,
    ) -> None:
        self._receiver = receiver
        self._handler = handler
        self._sensing = sensing
        self._timeout_s = timeout_s
        self._retry = retry
        self._bury = bury
        self._stored = finished
        self._auto_ack = auto_ack
        blocking = not is_async(handler)
        self._workers = Workers(concurrency or DEFAULT_THREADS) if blocking else None
        self._slots = asyncio.Semaphore(concurrency) if concurrency is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._finished = FinishedIds()
        self._done: list[tuple[Delivery, float]] = []  # and when the handler ended
        self._wake_acker = asyncio.Event()
        self._acker = asyncio.create_task(self._acknowledge())
        self._stopping = asyncio.Event()
        self._all_handled = False
        self.room = asyncio.Event()
        self.failed = self.retried = self.dead_lettered = self.returned = self.acked = self.repeats = 0

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def begin(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._one(delivery, time.monotonic()))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.room.set()
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "a message could not be settled and goes back when the consumer stops", exc_info=task.exception()
            )

    async def stop(self, timeout_s: float) -> None:
        """Let running handlers finish for so long; the others' messages go back when the receiver closes."""
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
        if self._workers is not None:
            self._workers.close()

    # --- one message ------------------------------------------------------------------------------------------

    async def _one(self, delivery: Delivery, taken_s: float) -> None:
        id = delivery.message.id
        if await self._is_repeat(delivery):
            self.repeats += 1
            self._settled(delivery, time.monotonic())
            return
        if self._auto_ack:
            self._settled(delivery, taken_s)
        task = asyncio.current_task()
        assert task is not None
        self._running[id] = task
        try:
            if not await self._handle(delivery):
                return  # it went back
        finally:
            if self._running.get(id) is task:
                del self._running[id]
        now_s = time.monotonic()
        self._finished.add((id,), now_s)
        if self._stored is not None:
            await asyncio.to_thread(self._stored.mark, (id,))
        happened_s = delivery.message.event_time_s
        self._sensing.finished(now_s - taken_s, None if happened_s is None else max(0.0, time.time() - happened_s))
        if not self._auto_ack:
            self._settled(delivery, now_s)

    async def _is_repeat(self, delivery: Delivery) -> bool:
        id = delivery.message.id
        running = self._running.get(id)
        if running is not None:
            await asyncio.wait({running})
        if (running is not None or delivery.redelivered) and self._finished.seen(id, time.monotonic()):
            return True
        if self._stored is not None:
            return bool(await asyncio.to_thread(self._stored.known, (id,)))
        return False

    async def _handle(self, delivery: Delivery) -> bool:
        """Until it is done or buried: True; or until it was given back: False."""
        failures, delays = 0, None
        while True:
            error = await self._try(delivery, first=failures == 0)
            if error is None:
                return True
            if error is _GIVEN_BACK:
                return False
            failures += 1
            self.failed += 1
            if delays is None:
                policy = self._retry
                delays = delays_s(policy.retries, first_s=policy.first_s, longest_s=policy.longest_s)
            decision = decide_after_failure(self._retry, failures, _said(error), next(delays, 0.0))
            if decision.action == "dead-letter":
                return await self._dead_letter(delivery, decision.reason)
            self.retried += 1
            if await self._stops_within(decision.delay_s) and self._receiver.may_return(delivery):
                await self._give_back(delivery)
                return False

    async def _try(self, delivery: Delivery, *, first: bool) -> BaseException | None:
        if self._slots is None:
            return await self._call(delivery, first=first)
        async with self._slots:
            if self._stopping.is_set() and self._receiver.may_return(delivery):
                await self._give_back(delivery)  # it waited for a handler and got none before the stop
                return _GIVEN_BACK
            return await self._call(delivery, first=first)

    async def _call(self, delivery: Delivery, *, first: bool) -> BaseException | None:
        if first:
            self._sensing.handed += 1
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                await self._invoke(delivery.message)
        except TimeoutError as error:
            return TimeoutError(f"the handler took longer than {self._timeout_s} s") if limit.expired() else error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the consumer stops
            return RuntimeError("what the handler waited for was cancelled")
        except Exception as error:  # noqa: BLE001 – a handler may raise anything; its message is tried again
            return error
        return None

    async def _invoke(self, message: Message) -> None:
        """Call the handler and wait for what it started: whatever it returns that can be awaited is awaited."""
        if self._workers is None:
            result = self._handler(message)
        else:
            result = await self._workers.call(self._handler, message)
        before = None
        while result is not before and (work := pending(result)) is not None:
            before, result = result, await work  # some objects return themselves

    async def _dead_letter(self, delivery: Delivery, reason: str) -> bool:
        """Store it there, however long that takes; dropped it is never."""
        log.warning("message %s of %s is dead: %s", delivery.message.id, delivery.channel, reason)
        if self._bury is None:
            self.dead_lettered += 1
            await self._receiver.nack(delivery, requeue=False)
            return False
        headers = {**delivery.message.headers, "flyball-error": reason, "flyball-channel": delivery.channel}
        while True:
            try:
                await self._bury(replace(delivery.message, headers=headers))
            except BrokerError as error:
                log.warning("the dead letter %s cannot be stored yet: %s", delivery.message.id, error)
                if await self._stops_within(_BURY_AGAIN_S):
                    await self._give_back(delivery)
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

    # --- telling the broker -----------------------------------------------------------------------------------

    async def _give_back(self, delivery: Delivery) -> None:
        self.returned += 1
        await self._receiver.nack(delivery)

    def _settled(self, delivery: Delivery, ended_s: float) -> None:
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
            self._sensing.add_wait(sum(now_s - ended_s for _, ended_s in done))
            try:
                await self._receiver.ack(*(delivery for delivery, _ in done))
            except BrokerError as error:  # they will be delivered again, and recognised
                log.warning("%d acknowledgements did not reach the broker: %s", len(done), error)
            self.acked += len(done)


_GIVEN_BACK = BaseException("given back")
DEFAULT_THREADS = 32


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
