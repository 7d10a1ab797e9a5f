"""Keeps confirmed messages until a consumer's receipt, and sends again what has none in time.

    confirmed ─▶ marked as sent in the outbox ─▶ receipt on the receipts channel ─▶ removed
                        └─ no receipt within the time ─▶ published again, same id

A receipt may come before the broker's confirm. It is acknowledged only when its messages are removed, so it is not
lost, whenever this process ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from flyball.backoff import delays_s
from flyball.brokers import Broker, Delivery, Receiver, connect
from flyball.brokers import delivery_receipts as wire
from flyball.brokers.port import BrokerError
from flyball.publisher.handle import Handle
from flyball.publisher.store_workers import WorkerPool
from flyball.publisher.unreceipted import Kept
from flyball.store.protocol import StoreError

Result = TypeVar("Result")

log = logging.getLogger(__name__)

_GROUP = "flyball-receipts"
_WINDOW = 1000
_AGAIN_TOGETHER = 500
_SHORT_S = 0.02
_LONGEST_LOOK_S = 1.0
_RETRY_S = 0.5
_ENDLESS = 10**9


class ReceiptKeeper:
    """`send_again` is given what has waited too long, `on_received` told when there is room in the outbox.

    While `is_behind`, messages of an earlier run are not handed over yet: nobody could tell whose receipts come.
    """

    def __init__(
        self,
        kept: Kept,
        pool: WorkerPool,
        *,
        urls: Sequence[str],
        channel: str,
        timeout_s: float,
        send_again: Callable[[list[Handle]], None],
        on_received: Callable[[], None],
        is_behind: Callable[[], bool],
    ) -> None:
        self._kept, self._pool, self._urls, self._channel = kept, pool, urls, channel
        self._timeout_s, self._send_again, self._on_received = timeout_s, send_again, on_received
        self._is_behind = is_behind
        self._under_way: set[str] = set()
        """Handed over and not marked yet: their receipts have to wait."""
        self._repeats: set[str] = set()
        self._to_mark: list[Handle] = []
        self._marking: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self.received = self.sent_again = 0
        self.trouble: BrokerError | None = None

    def start(self) -> None:
        for url in dict.fromkeys(self._urls):
            self._spawn(self._listen(url))
        self._spawn(self._look_again())

    # --- from the publisher -------------------------------------------------------------------------------------

    def leaving(self, handles: Sequence[Handle]) -> None:
        """These go to the broker now."""
        self._under_way.update(handle.id for handle in handles)

    def settled(self, handles: Sequence[Handle]) -> int:
        """The broker has these: keep them; how many it had for the first time."""
        fresh = sum(handle.id not in self._repeats for handle in handles)
        self._repeats.difference_update(handle.id for handle in handles)
        self._to_mark += handles
        if self._marking is None:
            self._marking = asyncio.get_running_loop().create_task(self._mark())
        return fresh

    def rejected(self, handle: Handle) -> None:
        self._under_way.discard(handle.id)
        self._repeats.discard(handle.id)

    async def waiting(self) -> int:
        """Messages without a receipt."""
        return len(self._to_mark) + await self._do(self._kept.count)

    async def marked(self) -> None:
        """Wait until what is confirmed is marked as sent, so that the next run does not send it again at once."""
        while self._marking is not None:
            await asyncio.wait([self._marking])

    async def all_received(self) -> None:
        while await self.waiting():
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._marking] if self._marking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------------------------

    async def _mark(self) -> None:
        try:
            while self._to_mark:
                handles, self._to_mark = self._to_mark, []
                try:
                    await self._do(self._kept.mark, handles)
                except StoreError:
                    self._to_mark = handles + self._to_mark
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._under_way.difference_update(handle.id for handle in handles)
        finally:
            self._marking = None

    async def _listen(self, url: str) -> None:
        """Take receipts from one broker, for as long as this publisher is open, whatever becomes of the broker."""
        waits = delays_s(_ENDLESS)
        while self._is_behind():
            await asyncio.sleep(_SHORT_S)
        while True:
            try:
                async with await connect(url) as broker:
                    receiver = await self._receiver(broker)
                    waits, self.trouble = delays_s(_ENDLESS), None
                    await self._take(receiver)
            except BrokerError as error:
                self.trouble = error
            except Exception:  # a fault of a client library must not end the listening
                log.exception("%s: reading receipts failed in a way that no broker error describes", self._channel)
            await asyncio.sleep(next(waits))

    async def _receiver(self, broker: Broker) -> Receiver:
        await wire.declare(broker, self._channel)
        if broker.capabilities.queues:
            return await broker.receiver(self._channel, window=_WINDOW)
        return await broker.subscribe(self._channel, _GROUP, window=_WINDOW, start="earliest")

    async def _take(self, receiver: Receiver) -> None:
        early: list[tuple[Delivery, list[str]]] = []
        while True:
            got = await receiver.receive(_WINDOW, timeout_s=_SHORT_S if early else None)
            early += [(delivery, wire.decode(delivery.message.body)) for delivery in got]
            ready = [(delivery, ids) for delivery, ids in early if self._under_way.isdisjoint(ids)]
            if not ready:
                continue
            early = [(delivery, ids) for delivery, ids in early if not self._under_way.isdisjoint(ids)]
            try:
                found = await self._pool.run(
                    "publish", self._kept.received, [id for _, ids in ready for id in ids]
                )
            except StoreError:
                early = ready + early
                await asyncio.sleep(_RETRY_S)
                continue
            await receiver.ack(*(delivery for delivery, _ in ready))
            if found:
                self.received += found
                self._changed.set()
                self._on_received()

    async def _look_again(self) -> None:
        """Send again what has waited for its receipt for too long."""
        while True:
            await asyncio.sleep(min(self._timeout_s / 4.0, _LONGEST_LOOK_S))
            try:
                late = await self._do(self._kept.overdue, self._timeout_s, _AGAIN_TOGETHER)
            except StoreError:
                continue
            late = [handle for handle in late if handle.id not in self._under_way]
            if late:
                self.sent_again += len(late)
                self._repeats.update(handle.id for handle in late)
                self._send_again(late)

    async def _do(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await self._pool.run("publish", call, *arguments) if self._kept.blocks else call(*arguments)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
