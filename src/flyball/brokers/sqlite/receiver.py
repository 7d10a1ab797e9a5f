"""Receives from one outlet of a SQLite broker: claims ranges of batches and makes deliveries of them."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat

from flyball.brokers.core.receiver import BaseReceiver
from flyball.brokers.port import BrokerError, Delivery
from flyball.brokers.sqlite import claims as sqlite_claims
from flyball.brokers.sqlite.claims import LeaseExpired, Range
from flyball.brokers.sqlite.codec import Batch, UnreadableBatch
from flyball.brokers.sqlite.connection import Session

_CACHE_BYTES = 16 << 20  # of batches of which a small window claims parts
_EXPIRY_CHECK_S = 0.25
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.001, 0.02


@dataclass(frozen=True, slots=True)
class _Loaded:
    batch: Batch
    channel: str
    partition: int | None
    first_offset: int


class SqliteReceiver(BaseReceiver):
    """Messages of this process wake it; it polls for those of others every 1 to 20 ms.

    `find_outlet(db, again)` finds the outlet, or raises; `again` when our lease was lost.
    """

    def __init__(
        self, session: Session, find_outlet: Callable[[sqlite3.Connection, bool], int], window: int
    ) -> None:
        super().__init__(window)
        self._session, self._find_outlet = session, find_outlet
        self._outlet = 0
        self._number = 0  # of our lease; see `claims`
        self._tags = itertools.count(1)
        self._positions: dict[int, tuple[int, int]] = {}  # tag → (batch, index in it)
        self._loaded: OrderedDict[int, _Loaded] = OrderedDict()
        self._loaded_bytes = 0
        self._parked: deque[Delivery] = deque()  # claimed, and not handed out yet
        self._claiming: asyncio.Task[None] | None = None
        self._likely = True  # that something waits, so that a query first would be wasted
        self._last_expiry_check_s = -1.0
        self._poll_s = _SHORTEST_POLL_S

    async def register(self) -> None:
        find_outlet, lease_s, again = self._find_outlet, self._session.lease_s, self._number > 0

        def job(db: sqlite3.Connection) -> tuple[int, int]:
            outlet = find_outlet(db, again)
            return outlet, sqlite_claims.register(db, outlet, lease_s)

        self._outlet, self._number = await self._session.write(job)
        self._session.wakes[self._number] = (self._outlet, self._notify)

    def _notify(self) -> None:
        self._likely = True
        super()._notify()

    async def _fetch(self, limit: int) -> Sequence[Delivery]:
        if not self._parked:
            # A `receive` that is cancelled must not lose messages: the claim completes and is parked.
            if self._claiming is None or self._claiming.done():
                self._claiming = asyncio.create_task(self._claim(limit))
            await asyncio.shield(self._claiming)
        return [self._parked.popleft() for _ in range(min(limit, len(self._parked)))]

    async def _claim(self, limit: int) -> None:
        now = time.monotonic()
        check_expired = now - self._last_expiry_check_s >= _EXPIRY_CHECK_S
        if check_expired:
            self._last_expiry_check_s = now
        outlet, number, known = self._outlet, self._number, set(self._loaded)
        if not self._likely and not await self._session.read(
            lambda db: _may_claim(db, number, outlet, check_expired)
        ):
            self._poll_s = min(2 * (self._poll_s or 0.0), _LONGEST_POLL_S)
            return
        try:
            ranges, fetched = await self._session.write_relaxed(
                lambda db: _claim_and_load(db, number, outlet, limit, check_expired, known)
            )
        except LeaseExpired:
            self._lose_lease()
            await self.register()
            return
        self._likely = bool(ranges)
        if ranges:
            self._poll_s = _SHORTEST_POLL_S
        newer: dict[int, UnreadableBatch] = {}
        for batch, count, data, channel, partition, first_offset in fetched:
            try:
                self._cache(batch, _Loaded(Batch(data, count), channel, partition, first_offset))
            except UnreadableBatch as error:
                newer[batch] = error
        for claimed in ranges:
            if claimed.batch not in newer:
                self._parked.extend(self._deliveries(claimed))
        self._shrink_cache()
        if newer:  # claimed until this receiver closes, then for one that understands it
            raise next(iter(newer.values()))

    def _deliveries(self, claimed: Range) -> list[Delivery]:
        loaded = self._loaded[claimed.batch]
        self._loaded.move_to_end(claimed.batch)
        count = claimed.high - claimed.low
        first = loaded.first_offset + claimed.low
        tags = list(itertools.islice(self._tags, count))
        self._positions.update(
            zip(tags, zip(repeat(claimed.batch), range(claimed.low, claimed.high)), strict=False)
        )
        messages, unreadable = loaded.batch.decode(claimed.low, claimed.high)
        return list(
            map(
                Delivery,
                messages,
                repeat(loaded.channel),
                tags,
                repeat(claimed.attempts > 1),
                repeat(claimed.attempts),
                repeat(loaded.partition),
                repeat(None) if loaded.partition is None else range(first, first + count),
                repeat(unreadable),
            )
        )

    def _cache(self, batch: int, loaded: _Loaded) -> None:
        self._loaded[batch] = loaded
        self._loaded_bytes += loaded.batch.size_bytes

    def _shrink_cache(self) -> None:
        while self._loaded_bytes > _CACHE_BYTES:
            _, oldest = self._loaded.popitem(last=False)
            self._loaded_bytes -= oldest.batch.size_bytes

    def _lose_lease(self) -> None:
        """Our number is not valid any more: the lease ran out in a long pause, and others may have claimed our
        messages; or the queue was deleted. The next claim registers again."""
        self._session.wakes.pop(self._number, None)
        self._parked.clear()
        self._positions.clear()
        self._likely = True
        self._drop_in_flight()

    async def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        await self._settle(sqlite_claims.settle, deliveries)

    async def _return(self, deliveries: Sequence[Delivery], requeue: bool) -> None:
        await self._settle(sqlite_claims.return_spans if requeue else sqlite_claims.settle, deliveries)
        self._session.wake((self._outlet,))

    async def _settle(
        self,
        settle: Callable[[sqlite3.Connection, int, int, Sequence[tuple[int, int, int]]], None],
        deliveries: Sequence[Delivery],
    ) -> None:
        number, outlet = self._number, self._outlet
        positions = {delivery.tag: self._positions.pop(delivery.tag) for delivery in deliveries}
        spans = _spans(sorted(positions.values()))
        try:
            await self._session.write_relaxed(lambda db: settle(db, number, outlet, spans))
        except LeaseExpired:
            if number == self._number:
                self._lose_lease()
        except BaseException:
            # Not settled, or cancelled and perhaps settled: they are in flight again, so the call can be repeated.
            if number == self._number:
                self._positions.update(positions)
                self._in_flight.update((delivery.tag, delivery) for delivery in deliveries)
            raise

    async def _release(self, unsettled: Sequence[Delivery]) -> None:  # noqa: ARG002  all claims return
        if self._claiming is not None:
            await asyncio.wait([self._claiming])
        number = self._number
        self._session.wakes.pop(number, None)
        # A file that is locked or full does not keep us: the lease is not renewed any more, and runs out.
        with suppress(BrokerError):
            await self._session.write_relaxed(lambda db: sqlite_claims.remove_receiver(db, number))
        self._session.wake((self._outlet,))


def _may_claim(db: sqlite3.Connection, receiver: int, outlet: int, check_expired: bool) -> bool:
    return sqlite_claims.has_waiting(db, outlet) or (
        check_expired
        and (
            not sqlite_claims.is_registered(db, receiver)  # our queue was deleted
            or bool(sqlite_claims.expired_receivers(db, outlet))
        )
    )


def _claim_and_load(
    db: sqlite3.Connection, receiver: int, outlet: int, limit: int, check_expired: bool, known: set[int]
) -> tuple[list[Range], list[tuple[int, int, bytes, str, int | None, int]]]:
    """Claim, and load the batches that the receiver does not have yet."""
    ranges = sqlite_claims.claim(db, receiver, outlet, limit, check_expired)
    fetched = []
    for batch in {claimed.batch for claimed in ranges} - known:
        fetched.append(
            db.execute(
                "SELECT b.id, b.count, data, name, CASE kind WHEN 'log' THEN partition END, first_offset "
                "FROM broker_batches b JOIN broker_payloads p ON p.batch = b.id "
                "JOIN broker_channels c ON c.id = b.channel WHERE b.id = ?",
                (batch,),
            ).fetchone()
        )
    return ranges, fetched


def _spans(positions: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Sorted (batch, index) pairs as (batch, low, high) runs.

    >>> _spans([(1, 0), (1, 1), (1, 3), (2, 0)])
    [(1, 0, 2), (1, 3, 4), (2, 0, 1)]
    """
    spans: list[tuple[int, int, int]] = []
    for batch, index in positions:
        if spans and spans[-1][0] == batch and spans[-1][2] == index:
            spans[-1] = (batch, spans[-1][1], index + 1)
        else:
            spans.append((batch, index, index + 1))
    return spans
