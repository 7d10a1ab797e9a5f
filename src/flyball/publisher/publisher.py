"""`Publisher`: accepts messages durably and brings them to one or several brokers, tuning itself.

    async with Publisher("amqp://localhost/", channel="orders", outbox="orders.db") as publisher:
        handle = await publisher.publish(b"...")      # safe in the outbox
        await handle.wait_confirmed()                 # the broker has it

The parts, as in S4::

    publish() ─▶ receive buffer ─▶ outbox (store) ─▶ backlog ─▶ lane per target: policy, window ─▶ broker
                 (intake.py)       writes first                 (lane.py, policy.py)

Delivery is at least once: after a crash what was not confirmed is sent again, with the same id.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flyball.brokers import Message
from flyball.brokers.core.names import check_name
from flyball.brokers.port import BrokerError, HeaderValue, Kind, new_id
from flyball.control.controllers import catalogue
from flyball.control.record import LoopRecord
from flyball.control.step import Controller
from flyball.errors import FlyballError, InvalidValue
from flyball.publisher import policy as rules
from flyball.publisher.backlog import Backlog
from flyball.publisher.handle import Dropped, Handle, Rejected, check_fit
from flyball.publisher.intake import Intake, WhenFull
from flyball.publisher.memory_outbox import MemoryOutbox, OutboxLike
from flyball.publisher.options import (
    OrderingConfig,
    OutboxConfig,
    ReceiptConfig,
    check_ordering,
    check_room,
    outbox_config,
    receipts_channel,
)
from flyball.publisher.outbox_file import Place
from flyball.publisher.receipts import ReceiptKeeper
from flyball.publisher.store_workers import WorkerPool
from flyball.publisher.target_sender import Lane, Target, TargetStats, now_s
from flyball.store import Full, StoreError
from flyball.store.outbox import USUAL, check_urgency

_OVERHEAD_BYTES = 200
_MOST_HELD = 20_000
_READ_TOGETHER = 500
_YIELD_EVERY = 64
_RELAY_S = 0.05
_RETRY_S = 0.5
_GATHER_S = 0.01
"""Confirmed messages leave the store together after this time: its writer is for those who wait for a commit."""


class Undelivered(FlyballError, RuntimeError):
    """The publisher was closed before the broker confirmed everything, and nothing keeps what is left."""


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """Messages since the publisher was opened; `waiting` are accepted and not confirmed.

    `received` and `sent_again` count delivery receipts, and messages published again for want of one.
    """

    accepted: int
    confirmed: int
    dropped: int
    refused: int
    rejected: int
    repeated: int
    waiting: int
    in_flight: int
    buffered: int
    received: int
    sent_again: int
    targets: tuple[TargetStats, ...]

    def counts(self) -> dict[str, int]:
        """The numbers of messages alone."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "targets"}


class Publisher:
    """Publishes to `channel` at one broker (`url`) or at several (`targets`).

    `async with Publisher(…)`: entered, it runs; left, it waits until everything is confirmed, at most
    `close_timeout_s`, and closes. Left by an exception it closes at once; a file keeps what is not confirmed.

    `outbox` is the path of a SQLite file, an `OutboxConfig`, or None: in memory. `controller` is "auto",
    "batch-aimd", "static" or a controller of your own; `batch` is its initial batch size, `batch_wait_s` how long
    messages may wait for a batch to fill. When there is no room (receive buffer of `buffer` messages, `max_bytes`
    of the outbox), `publish` waits, raises (`when_full="error"`) or drops and counts. A message of urgency u waits
    at most u · `urgency_step_s` longer than an urgent one. `declare` makes the channel ("queue" or "log") where it
    does not exist. `workers` are the threads for store work. With `required_confirms` below the number of targets,
    a message is done when that many have it; the others still get it while this process lives and they are not too
    far behind.

    `receipts` keeps messages in the outbox until consumers say that they are done with them (`ReceiptConfig`).
    `ordering` keeps the order of messages (`OrderingConfig`; repeats may follow): one batch at a time is on the
    way then, and there are no urgency classes.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        outbox: str | Path | OutboxConfig | None,
        channel: str | None = None,
        targets: Sequence[str | tuple[str, str]] | None = None,
        required_confirms: int | None = None,
        controller: str | Controller[Any] = "auto",
        batch: int = 1,
        batch_wait_s: float = 0.2,
        when_full: WhenFull = "wait",
        buffer: int = 10_000,
        urgency_step_s: float = 5.0,
        declare: Kind | None = None,
        ordering: OrderingConfig | None = None,
        receipts: ReceiptConfig | None = None,
        workers: int = 2,
        close_timeout_s: float = 30.0,
    ) -> None:
        if (url is None) == (targets is None):
            raise InvalidValue("a publisher needs either a broker URL or targets=[…], and not both")
        self._outbox_config = outbox_config(outbox)
        check_room(when_full, buffer, urgency_step_s)
        check_ordering(ordering, self._outbox_config)
        self._channel = None if channel is None else check_name(channel)
        self._targets = [url] if url is not None else list(targets or [])
        count = len(self._targets)
        self._required = count if required_confirms is None else required_confirms
        if not 1 <= self._required <= count:
            raise InvalidValue(
                f"required_confirms must be between 1 and {count} (the number of targets), got {required_confirms}"
            )
        self._receipts, self._receipts_channel = receipts, receipts_channel(receipts, channel, ordering)
        self._keeper: ReceiptKeeper | None = None
        self._ordering = ordering
        controller = catalogue.make(controller) if isinstance(controller, str) else controller
        self._policy = rules.Policy(controller, batch_wait_s, ordered=ordering is not None)
        rules.start(self._policy, 0.0, batch=batch)  # a controller that does not fit is refused here, not later
        self._batch, self._declare, self._urgency_step_s = batch, declare, urgency_step_s
        self._when_full, self._buffer = when_full, buffer
        self._workers, self._close_timeout_s = workers, close_timeout_s
        self._place: Place | None = None
        self._memory: MemoryOutbox | None = None
        self._outbox: OutboxLike
        self._lanes: dict[str, list[Lane]] = {}
        self._done: list[int] = []
        self._removing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._relaying: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._unsettled = 0
        self._since_yield = 0
        self._accepted = self._confirmed = self._rejected = self._dropped = self._refused = 0
        self._open = False

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._pool = WorkerPool(self._workers)
        self._accounting = asyncio.Lock()
        try:
            self._place = await self._pool.run(
                "receive",
                Place,
                self._outbox_config,
                0 if self._ordering is None else self._ordering.first_sequence,
            )
            self._memory, self._outbox = self._place.memory, self._place.outbox
            newest = self._newest = await self._pool.run("publish", self._outbox.newest)
            # Without a file nothing can be read again: all of it is held, and `max_bytes` alone bounds it.
            most_held = _MOST_HELD if self._memory is None else sys.maxsize
            self._backlog = Backlog(
                newest,
                unread=self._memory is None,
                required=self._required,
                urgency_step_s=self._urgency_step_s,
                most_held=most_held,
            )
            self._intake = Intake(
                self._outbox,
                self._pool,
                accounting=self._accounting,
                capacity=self._buffer,
                when_full=self._when_full,
                on_accepted=self._on_accepted,
            )
            await self._prepare_receipts(self._place)
            self._open = True
            if self._channel is not None:
                await asyncio.gather(*(lane.open() for lane in self._lanes_of(self._channel, opened=False)))
        except BaseException:
            await self._release()
            raise
        if self._memory is None:
            self._relaying = asyncio.get_running_loop().create_task(self._relay())
            self._read_on()
        if self._keeper is not None:
            self._keeper.start()
        return self

    async def _prepare_receipts(self, place: Place) -> None:
        if self._receipts is None or self._receipts_channel is None:
            await self._pool.run("publish", place.forget_sent)
            return
        self._keeper = ReceiptKeeper(
            place.kept(self._required, self._urgency_step_s),
            self._pool,
            urls=[target if isinstance(target, str) else target[0] for target in self._targets],
            channel=self._receipts_channel,
            timeout_s=self._receipts.timeout_s,
            send_again=self._send_again,
            on_received=self._on_received,
            is_behind=lambda: (self._backlog.next_range() or (sys.maxsize, 0))[0] <= self._newest,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._finish()
        finally:
            await self._release()

    async def drain(self) -> None:
        """Wait until everything that was accepted is confirmed."""
        while self._unsettled or self._backlog.unread:
            self._settled.clear()
            await self._settled.wait()

    # --- publishing ---------------------------------------------------------------------------------------------

    async def publish(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        urgency: int = USUAL,
        headers: Mapping[str, HeaderValue] | None = None,
        event_time_s: float | None = None,
        content_type: str | None = None,
        id: str | None = None,
        channel: str | None = None,
    ) -> Handle:
        """Accept a message; returns when it is safe in the outbox. `handle.wait_confirmed()` awaits the broker."""
        message = Message(body, id or new_id(), key, headers or {}, event_time_s, content_type)
        (handle,) = await self.publish_many((message,), urgency=urgency, channel=channel)
        return handle

    async def publish_many(
        self, messages: Iterable[Message], *, urgency: int = USUAL, channel: str | None = None
    ) -> list[Handle]:
        """Accept many at once: one wait for the disk.

        Raises, as `publish` does, where a message was refused; what was accepted beside it stays accepted. Who
        wants to know the fate of each calls `publish` for each: calls at the same time share commits, too.
        """
        if not self._open:
            raise InvalidValue("this publisher is not open: use it in `async with Publisher(…) as publisher`")
        check_urgency(urgency)
        if self._ordering is not None and urgency != USUAL:
            raise InvalidValue(f"urgency {urgency} would overtake, and this publisher is ordered: leave it out")
        name = self._channel if channel is None else check_name(channel)
        if name is None:
            raise InvalidValue("this publisher has no channel of its own: name one, publish(…, channel=…)")
        required = self._required
        handles = []
        for message in messages:
            check_fit(message)
            size_bytes = len(message.body) + len(message.key or b"") + _OVERHEAD_BYTES
            handles.append(Handle(message, name, urgency, size_bytes, required))
        if not handles:
            return handles
        self._lanes_of(name)
        if self._memory is None:
            await self._intake.accept(handles)
        else:
            await self._accept_in_memory(self._memory, handles)
        for handle in handles:
            if handle._error is not None and not handle.accepted and not isinstance(handle._error, Dropped):
                raise handle._error
        return handles

    async def _accept_in_memory(self, outbox: MemoryOutbox, handles: list[Handle]) -> None:
        self._since_yield += len(handles)
        if self._since_yield >= _YIELD_EVERY:
            self._since_yield = 0
            await asyncio.sleep(0)  # nothing else here gives the event loop its turn
        try:
            self._on_accepted(handles, outbox.enter([handle.size_bytes for handle in handles]))
            return
        except Full as error:
            if len(handles) == 1 and self._when_full != "wait":
                self._refuse(handles[0], error)
                return
        for handle in handles:
            while not handle.accepted and handle._error is None:
                try:
                    self._on_accepted([handle], outbox.enter([handle.size_bytes]))
                except Full as error:
                    if self._when_full != "wait" or not outbox.pending()[0]:
                        self._refuse(handle, error)  # also what would not fit into an empty outbox
                        break
                    self._settled.clear()
                    await self._settled.wait()

    def _refuse(self, handle: Handle, error: StoreError) -> None:
        if self._when_full == "drop":
            self._dropped += 1
            handle._fail(Dropped(f"message {handle.id} was dropped: {error}"))
        else:
            self._refused += 1
            handle._fail(error)

    # --- what it says about itself ------------------------------------------------------------------------------

    @property
    def stats(self) -> PublisherStats:
        """Counts since it was opened, and the settings of each target."""
        lanes = [lane for lanes in self._lanes.values() for lane in lanes]
        return PublisherStats(
            accepted=self._accepted,
            confirmed=self._confirmed,
            dropped=self._dropped + self._intake.dropped,
            refused=self._refused + self._intake.refused,
            rejected=self._rejected,
            repeated=sum(lane.counts.repeated for lane in lanes),
            waiting=self._unsettled,
            in_flight=sum(lane.state.in_flight for lane in lanes),
            buffered=self._intake.buffered,
            received=0 if self._keeper is None else self._keeper.received,
            sent_again=0 if self._keeper is None else self._keeper.sent_again,
            targets=tuple(
                lane.stats(channel, number)
                for channel, lanes_of_channel in self._lanes.items()
                for number, lane in enumerate(lanes_of_channel)
            ),
        )

    @property
    def problems(self) -> list[str]:
        """One sentence for each target that takes nothing at the moment."""
        troubles = [lane.trouble for lanes in self._lanes.values() for lane in lanes]
        troubles += [self._keeper.trouble] if self._keeper is not None else []
        return [str(trouble) for trouble in troubles if trouble is not None]

    def steps(self, channel: str | None = None) -> list[LoopRecord]:
        """The newest steps of the controller, oldest first: what it saw, what it set, and why."""
        lanes = self._lanes.get(channel or self._channel or "", [])
        return sorted((record for lane in lanes for record in lane.records), key=lambda record: record.time)

    # --- inside -------------------------------------------------------------------------------------------------

    def _lanes_of(self, channel: str, *, opened: bool = True) -> list[Lane]:
        lanes = self._lanes.get(channel)
        if lanes is None:
            lanes = self._lanes[channel] = [
                Lane(
                    Target(
                        *((target, channel) if isinstance(target, str) else target),
                        self._declare,
                        None if self._ordering is None else self._ordering.producer,
                        self._newest,
                    ),
                    replace(self._policy, name=channel),
                    batch=self._batch,
                    on_settled=self._on_settled,
                    on_rejected=self._on_rejected,
                )
                for target in self._targets
            ]
            if opened:
                for lane in lanes:
                    lane.open_later()
        return lanes

    def _on_accepted(self, handles: list[Handle], seqs: Sequence[int]) -> None:
        self._accepted += len(handles)
        self._unsettled += len(handles)
        self._hand_over(self._backlog.committed(handles, seqs, now_s()))
        if self._backlog.unread:
            self._read_on()

    def _hand_over(self, handles: list[Handle]) -> None:
        if not handles:
            return
        if self._keeper is not None:
            self._keeper.leaving(handles)
        channel = handles[0].channel
        if all(handle.channel == channel for handle in handles):
            for lane in self._lanes_of(channel):
                lane.add(handles)
            return
        for handle in handles:
            for lane in self._lanes_of(handle.channel):
                lane.add([handle])

    def _on_settled(self, handles: list[Handle]) -> None:
        self._confirmed += len(handles) if self._keeper is None else self._keeper.settled(handles)
        self._forget(handles, keep=self._keeper is not None)

    def _send_again(self, handles: list[Handle]) -> None:
        """These are in the outbox, confirmed, and nobody has sent a receipt."""
        self._backlog.held += len(handles)
        self._unsettled += len(handles)
        self._hand_over(handles)

    def _on_received(self) -> None:
        self._intake.confirmed()
        self._settled.set()

    def _on_rejected(self, handle: Handle, error: BrokerError) -> None:
        if handle._error is None and not handle.is_confirmed:
            self._rejected += 1
            handle._fail(Rejected(f"message {handle.id} cannot be published: {error}"))
            if self._keeper is not None:
                self._keeper.rejected(handle)
            self._forget([handle])

    def _forget(self, handles: list[Handle], *, keep: bool = False) -> None:
        """These are done: out of memory, and out of the store unless kept there; whoever waits may look again."""
        self._backlog.held -= len(handles)
        self._unsettled -= len(handles)
        if keep:
            pass
        elif self._memory is not None:
            self._memory.confirm([handle.seq for handle in handles])
        else:
            self._done += [handle.seq for handle in handles]
            if self._removing is None:
                self._removing = asyncio.get_running_loop().create_task(self._remove())
        if self._backlog.unread:
            self._read_on()
        self._settled.set()

    async def _remove(self) -> None:
        """Take what is confirmed out of the store, together with all that is confirmed meanwhile."""
        try:
            while self._done:
                if not self._intake.short_of_room:
                    await asyncio.sleep(_GATHER_S)
                seqs, self._done = self._done, []
                try:
                    await self._pool.run("publish", self._outbox.confirm, seqs)
                    self._intake.confirmed()
                except StoreError:
                    # A full disk cannot even forget; until it can, a crash would send these again.
                    self._done = seqs + self._done
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._removing = None

    def _read_on(self) -> None:
        if self._reading is None and self._open:
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        """Bring what is in the store only into memory, as far as there is room."""
        try:
            while self._backlog.has_room:
                wanted = self._backlog.next_range()
                if wanted is None:
                    break
                try:
                    found = await self._pool.run("publish", self._outbox.read, *wanted, _READ_TOGETHER)
                except StoreError:
                    await asyncio.sleep(_RETRY_S)
                    continue
                handles, new = self._backlog.read(wanted[1], _READ_TOGETHER, found)
                self._unsettled += new
                self._hand_over(handles)
                self._settled.set()
        finally:
            self._reading = None

    async def _relay(self) -> None:
        """Notice what the application has written in its own transactions."""
        while True:
            await asyncio.sleep(_RELAY_S)
            with suppress(StoreError):
                async with self._accounting:
                    self._backlog.seen(await self._pool.run("publish", self._outbox.newest))
            if self._backlog.unread:
                self._read_on()

    async def _finish(self) -> None:
        try:
            await asyncio.wait_for(self._all_done(), self._close_timeout_s)
        except TimeoutError:
            if self._memory is not None:
                reasons = "; ".join(self.problems) or "the broker is slow"
                kept = 0 if self._keeper is None else await self._keeper.waiting()
                without = f", {kept} had no receipt" if kept else ""
                raise Undelivered(
                    f"{self._unsettled} messages were not confirmed{without} within {self._close_timeout_s:g} s "
                    f"({reasons}) and are lost, for the outbox is in memory: use a file, or raise close_timeout_s"
                ) from None

    async def _all_done(self) -> None:
        """All is confirmed, and what would be lost with this process has its receipts."""
        await self.drain()
        if self._keeper is not None:
            await (self._keeper.all_received() if self._memory is not None else self._keeper.marked())

    async def _release(self) -> None:
        self._open = False
        if self._keeper is not None:
            await self._keeper.close()
        for lanes in self._lanes.values():
            await asyncio.gather(*(lane.close() for lane in lanes))
        for task in (self._relaying, self._reading):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if hasattr(self, "_intake"):
            await self._intake.close()
        removing = self._removing
        if removing is not None:
            await asyncio.wait([removing], timeout=_RETRY_S)
            removing.cancel()
        await asyncio.to_thread(self._pool.close)
        if self._place is not None:
            self._place.close()
