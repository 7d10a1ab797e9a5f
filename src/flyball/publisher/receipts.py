"""Keeps confirmed messages until a consumer's delivery receipt, and sends again what has none in time.

    confirmed ─▶ stored as sent in the outbox ─▶ receipt on the receipts channel ─▶ removed
                        └─ no receipt within the time ─▶ published again, same id

A receipt may come before the broker's confirm. It is acknowledged only when its messages are removed, so it is not
lost, whenever this process ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from flyball.backoff import ENDLESS, ReconnectDelay, delays_s
from flyball.brokers import Broker, Delivery, Receiver, connect
from flyball.brokers import delivery_receipts as wire
from flyball.brokers.port import BrokerError
from flyball.publisher.handle import Handle
from flyball.publisher.unreceipted import Unreceipted
from flyball.store.protocol import StoreError
from flyball.store.worker_pool import WorkerPool

Result = TypeVar("Result")

log = logging.getLogger(__name__)

_GROUP = "flyball-receipts"
_WINDOW = 1000
_MAX_RESENT = 500
_SHORT_S = 0.02
_MAX_CHECK_S = 1.0
_RETRY_S = 0.5


class ReceiptTracker:
    """Calls `resend` with what has waited too long, and `on_receipts` when receipts made room in the outbox.

    While `is_behind`, messages of an earlier run are not handed over yet, and a receipt could be one of theirs.
    """

    def __init__(
        self,
        unreceipted: Unreceipted,
        pool: WorkerPool,
        *,
        urls: Sequence[str],
        channel: str,
        timeout_s: float,
        resend: Callable[[list[Handle]], None],
        on_receipts: Callable[[], None],
        is_behind: Callable[[], bool],
    ) -> None:
        self._unreceipted, self._pool, self._urls, self._channel = unreceipted, pool, urls, channel
        self._timeout_s, self._resend, self._on_receipts = timeout_s, resend, on_receipts
        self._is_behind = is_behind
        self._in_flight: Counter[str] = Counter()
        """Ids that are handed over and not stored as confirmed yet: their receipts have to wait."""
        self._confirmed: list[Handle] = []
        self._writer: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self.received = self.sent_again = 0
        self.problem: BrokerError | None = None

    def start(self) -> None:
        for url in dict.fromkeys(self._urls):
            self._spawn(self._listen(url))
        self._spawn(self._resend_overdue())

    # --- called by the relay ------------------------------------------------------------------------------------

    def add_in_flight(self, handles: Sequence[Handle]) -> None:
        """These are sent to the broker now."""
        self._in_flight.update(handle.id for handle in handles)

    def add_confirmed(self, handles: Sequence[Handle]) -> None:
        """The broker has these."""
        self._confirmed += handles
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    def discard(self, handle: Handle) -> None:
        """This one was rejected: it has no receipt."""
        self._end_flight([handle])
        self._unreceipted.discard(handle)

    async def waiting(self) -> int:
        """Messages without a receipt."""
        return len(self._confirmed) + await self._do(self._unreceipted.count)

    async def flush(self) -> None:
        """Wait until what is confirmed is stored as sent, so that the next run does not send it again at once."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def wait_all_received(self) -> None:
        while await self.waiting():
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._writer] if self._writer is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        try:
            while self._confirmed:
                handles, self._confirmed = self._confirmed, []
                try:
                    await self._do(self._unreceipted.add, handles)
                except StoreError:
                    self._confirmed = handles + self._confirmed
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._end_flight(handles)
        finally:
            self._writer = None

    def _end_flight(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            if self._in_flight[handle.id] > 1:
                self._in_flight[handle.id] -= 1
            else:
                del self._in_flight[handle.id]

    async def _listen(self, url: str) -> None:
        """Read receipts from one broker while this publisher is open; connect again whenever that is lost."""
        pauses, delay = delays_s(ENDLESS), ReconnectDelay()
        while self._is_behind():
            await asyncio.sleep(_SHORT_S)
        while True:
            try:
                async with await connect(url) as broker:
                    receiver = await self._receiver(broker)
                    pauses, self.problem = delays_s(ENDLESS), None
                    delay.opened(time.monotonic())
                    await self._read(receiver)
            except BrokerError as error:
                self.problem = error
            except Exception:  # a fault of a client library must not end the listening
                log.exception("%s: reading receipts failed in a way that no broker error describes", self._channel)
            delay.lost(time.monotonic())
            await asyncio.sleep(next(pauses) + delay.remaining_s(time.monotonic()))

    async def _receiver(self, broker: Broker) -> Receiver:
        await wire.declare(broker, self._channel)
        if broker.capabilities.queues:
            return await broker.receiver(self._channel, window=_WINDOW)
        return await broker.subscribe(self._channel, _GROUP, window=_WINDOW, start="earliest")

    async def _read(self, receiver: Receiver) -> None:
        early: list[tuple[Delivery, list[str]]] = []
        while True:
            deliveries = await receiver.receive(_WINDOW, timeout_s=_SHORT_S if early else None)
            early += [(delivery, wire.decode(delivery.message.body)) for delivery in deliveries]
            ready = [(delivery, ids) for delivery, ids in early if self._in_flight.keys().isdisjoint(ids)]
            if not ready:
                continue
            early = [(delivery, ids) for delivery, ids in early if not self._in_flight.keys().isdisjoint(ids)]
            try:
                count = await self._do(self._unreceipted.remove, [id for _, ids in ready for id in ids])
            except StoreError:
                early = ready + early
                await asyncio.sleep(_RETRY_S)
                continue
            await receiver.ack(*(delivery for delivery, _ in ready))
            if count:
                self.received += count
                self._changed.set()
                self._on_receipts()

    async def _resend_overdue(self) -> None:
        """Send again what has waited for its receipt for too long."""
        while True:
            await asyncio.sleep(min(self._timeout_s / 4.0, _MAX_CHECK_S))
            try:
                late = await self._do(self._unreceipted.overdue, self._timeout_s, _MAX_RESENT)
            except StoreError:
                continue
            late = [handle for handle in late if handle.id not in self._in_flight]
            if late:
                self.sent_again += len(late)
                self._resend(late)

    async def _do(self, call: Callable[..., Result], *arguments: Any) -> Result:
        if self._unreceipted.in_memory:
            return call(*arguments)
        return await self._pool.run("publish", call, *arguments)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
