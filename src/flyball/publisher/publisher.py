"""`Publisher`: accepts messages durably and brings them to one or several brokers, tuning itself.

    async with Publisher("amqp://localhost/", channel="orders", outbox="orders.db") as publisher:
        handle = await publisher.publish(b"...")      # safe in the outbox
        await handle.wait_confirmed()                 # the broker has it

The parts::

    publish() ─▶ receive buffer ─▶ outbox ─▶ relay ─▶ one sender for each target: policy, window ─▶ broker
                 (intake.py)                          (target_sender.py, policy.py)

Delivery is at least once: after a crash what was not confirmed is sent again, with the same id.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from flyball.brokers import Message
from flyball.brokers.core.checks import too_large
from flyball.brokers.core.names import check_name
from flyball.brokers.port import HeaderValue, Kind, new_id
from flyball.control.controllers import catalogue
from flyball.control.record import LoopRecord
from flyball.control.step import Controller
from flyball.errors import FlyballError, InvalidValue
from flyball.futures import wait_at_most
from flyball.message import check_message
from flyball.publisher.handle import ConfirmWaits, Dropped, Handle, PublisherClosed, size_of
from flyball.publisher.intake import Intake, WhenFull
from flyball.publisher.options import (
    OrderingConfig,
    OutboxConfig,
    ReceiptConfig,
    check_limits,
    check_ordering,
    outbox_config,
    receipts_channel,
)
from flyball.publisher.outbox import PublisherOutbox, open_outbox
from flyball.publisher.policy import Policy, start
from flyball.publisher.receipts import ReceiptTracker
from flyball.publisher.relay import Relay
from flyball.publisher.target_sender import Targets, TargetSender, TargetStats
from flyball.store import DeadLetter
from flyball.store.outbox import USUAL, check_urgency
from flyball.store.worker_pool import WorkerPool

NOT_OPEN = "this publisher is not open yet: use it inside of its `async with` block (SyncPublisher: `with`)"
CLOSED = "this publisher is closed: make another one"

_Stage: TypeAlias = Literal["new", "opening", "open", "closing", "closed"]


class Undelivered(FlyballError, RuntimeError):
    """The publisher was closed before the broker confirmed everything, and nothing keeps what is left."""


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """Messages since the publisher was opened.

    At any moment accepted + from_outbox = confirmed + rejected + waiting. `from_outbox` were in the outbox
    already, or were written there by others (`enqueue`, a replay). `rejected` are dead letters of the outbox.
    `dropped` and `refused` were not accepted.
    `received` and `sent_again` count delivery receipts, and messages published again for want of one.
    """

    accepted: int
    from_outbox: int
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
    a message is confirmed when that many have it; the others still get it while this process lives and they are
    not too far behind. What too few will ever store is kept as a dead letter (`dead_letters`).

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
        check_limits(when_full, buffer, urgency_step_s)
        check_ordering(ordering, self._outbox_config)
        self._channel = None if channel is None else check_name(channel)
        addresses = [url] if url is not None else list(targets or [])
        self._required = len(addresses) if required_confirms is None else required_confirms
        if not 1 <= self._required <= len(addresses):
            raise InvalidValue(
                f"required_confirms must be between 1 and {len(addresses)} (the number of targets), "
                f"got {required_confirms}"
            )
        self._receipts, self._receipts_channel = receipts, receipts_channel(receipts, channel, ordering)
        self._ordering = ordering
        controller = catalogue.make(controller) if isinstance(controller, str) else controller
        policy = Policy(controller, batch_wait_s, ordered=ordering is not None)
        start(policy, 0.0, batch=batch)  # a controller that does not fit is refused here, not later
        self._targets = Targets(addresses, policy, batch, declare, None if ordering is None else ordering.producer)
        self._urgency_step_s, self._when_full, self._buffer = urgency_step_s, when_full, buffer
        if not close_timeout_s >= 0:
            raise InvalidValue(f"close_timeout_s must be >= 0, got {close_timeout_s}")
        self._workers, self._close_timeout_s = workers, close_timeout_s
        self._outbox: PublisherOutbox | None = None
        self._tracker: ReceiptTracker | None = None
        self._intake: Intake
        self._relay: Relay
        self._waits = ConfirmWaits()
        self._stage: _Stage = "new"
        self._process = os.getpid()
        self._resources = AsyncExitStack()
        self._opening: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None

    # --- life cycle ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_new()
        self._stage, self._process = "opening", os.getpid()
        self._loop = asyncio.get_running_loop()
        opening = self._opening = asyncio.get_running_loop().create_task(self._open())
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await _wait_for_end(opening)
            if not opening.cancelled() and opening.exception() is None:
                await self._release()  # nobody would close it
            raise
        finally:
            if opening.cancelled() or opening.exception() is not None:
                self._stage = "new"
        if opening.cancelled():
            raise PublisherClosed("this publisher was closed while it opened")
        opening.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opening = self._opening
        if opening is None or self._process != os.getpid():
            return  # nothing is open, or it belongs to the process that this one was forked from
        if not opening.done():
            opening.cancel()
            await _wait_for_end(opening)
        if opening.cancelled() or opening.exception() is not None:
            return  # it has closed what it opened
        try:
            if kind is None and self._stage != "closed":
                self._stage = "closing"
                await self._finish()
        finally:
            await self._release()

    async def _open(self) -> None:
        first_sequence = 0 if self._ordering is None else self._ordering.first_sequence
        self._waits, self._outbox, self._tracker = ConfirmWaits(), None, None
        pool = WorkerPool(self._workers)

        def open_store() -> PublisherOutbox:
            self._outbox = open_outbox(self._outbox_config, first_sequence)
            return self._outbox

        def close_store() -> None:
            pool.close()
            if self._outbox is not None:
                self._outbox.close()

        # Closed in reverse order, each whatever becomes of the others.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, close_store)
            outbox = await pool.run("receive", open_store)
            stack.callback(self._waits.close, outbox.fate)
            relay = self._relay = Relay(
                outbox,
                pool,
                self._targets,
                newest=await pool.run("publish", outbox.newest),
                required=self._required,
                urgency_step_s=self._urgency_step_s,
            )
            stack.push_async_callback(relay.close)
            self._intake = Intake(relay, capacity=self._buffer, when_full=self._when_full)
            if self._receipts is None or self._receipts_channel is None:
                await pool.run("publish", outbox.forget_sent)
            else:
                self._tracker = relay.receipts = ReceiptTracker(
                    outbox.unreceipted(self._urgency_step_s),
                    pool,
                    urls=self._targets.urls,
                    channel=self._receipts_channel,
                    timeout_s=self._receipts.timeout_s,
                    resend=relay.resend,
                    on_receipts=relay.on_receipts,
                    is_behind=relay.is_behind,
                )
                stack.push_async_callback(self._tracker.close)
            stack.push_async_callback(self._intake.close)
            if self._channel is not None:
                await relay.open(self._channel)
            relay.start()
            if self._tracker is not None:
                self._tracker.start()
            self._stage, self._resources = "open", stack.pop_all()

    async def drain(self) -> None:
        """Wait until everything that was accepted is confirmed or rejected."""
        self._check_open()
        self._check_loop()
        await self._relay.drain()

    async def _finish(self) -> None:
        try:
            await wait_at_most(self._wait_all_done(), self._close_timeout_s)
        except (TimeoutError, PublisherClosed):
            if not self._relay.in_memory:
                return
            unreceipted = 0 if self._tracker is None else await self._tracker.waiting()
            if self._relay.unconfirmed or unreceipted:
                reasons = "; ".join(self.problems) or "the broker is slow"
                without = f", {unreceipted} had no receipt" if unreceipted else ""
                raise Undelivered(
                    f"{self._relay.unconfirmed} messages were not confirmed{without} within "
                    f"{self._close_timeout_s:g} s ({reasons}) and are lost, because the outbox is in memory: "
                    "use a file, or raise close_timeout_s"
                ) from None

    async def _wait_all_done(self) -> None:
        """Wait until calls under way have ended, all is confirmed, also by targets beyond the required ones, and
        what would be lost has its receipts."""
        await self._intake.wait_idle()
        await self._relay.drain()
        await self._relay.wait_for_others()
        if self._tracker is not None:
            await (self._tracker.wait_all_received() if self._relay.in_memory else self._tracker.flush())

    async def _release(self) -> None:
        """Close everything, once."""
        self._stage = "closed"
        if self._releasing is None:
            self._releasing = asyncio.get_running_loop().create_task(self._resources.aclose())
        await _wait_for_end(self._releasing)
        self._releasing.result()

    def _check_new(self) -> None:
        if self._stage in ("opening", "open"):
            raise PublisherClosed("this publisher is open already: share it, or make another one")
        if self._stage != "new":
            raise PublisherClosed(f"{CLOSED} instead of opening this one again")

    def _check_open(self) -> None:
        if self._stage in ("new", "opening"):
            raise PublisherClosed(NOT_OPEN)
        if self._stage == "closed":
            raise PublisherClosed(CLOSED)
        if self._process != os.getpid():
            raise PublisherClosed(
                f"this publisher was opened by process {self._process} and cannot be used by its child "
                f"{os.getpid()}: open one after the fork"
            )

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidValue(
                "a publisher must be used in the event loop that opened it: open one in each, or use "
                "SyncPublisher, which may be called from any thread"
            )

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
        message = Message(
            body,
            new_id() if id is None else id,
            key,
            {} if headers is None else headers,
            event_time_s,
            content_type,
        )
        (handle,) = await self.publish_many((message,), urgency=urgency, channel=channel)
        return handle

    async def publish_many(
        self, messages: Iterable[Message], *, urgency: int = USUAL, channel: str | None = None
    ) -> list[Handle]:
        """Accept many at once: one wait for the disk.

        Raises before any is accepted where one of them is no message, or larger than enough brokers take. Raises,
        as `publish` does, where a message was refused; what was accepted beside it stays accepted. Who wants to
        know the fate of each calls `publish` for each: calls at the same time share commits, too.
        """
        self._check_open()
        self._check_loop()
        if self._stage == "closing":
            raise PublisherClosed("this publisher is closing: the message was not accepted")
        urgency = check_urgency(urgency)
        if self._ordering is not None and urgency != USUAL:
            raise InvalidValue(f"urgency {urgency} would overtake, and this publisher is ordered: leave it out")
        name = self._channel if channel is None else check_name(channel)
        if name is None:
            raise InvalidValue("this publisher has no channel of its own: name one, publish(…, channel=…)")
        limit = self._relay.max_body_bytes(name)
        waits = self._waits
        handles = []
        for message in map(check_message, messages):
            if limit is not None and len(message.body) > limit:
                raise too_large(message, limit)
            handles.append(Handle(message, name, urgency, size_of(message), waits))
        if not handles:
            return handles
        await self._intake.accept(handles)
        for handle in handles:
            if handle._error is not None and not handle.accepted and not isinstance(handle._error, Dropped):
                raise handle._error
        return handles

    # --- dead letters -------------------------------------------------------------------------------------------

    async def dead_letters(self, limit: int = 1000, *, after: int = 0) -> list[DeadLetter]:
        """Read the first `limit` dead letters of the outbox with a number above `after`."""
        self._check_open()
        self._check_loop()
        return await self._relay.dead_letters(limit, after)

    async def replay_dead_letters(self, numbers: Sequence[int] | None = None) -> int:
        """Send dead letters again, by their numbers (None: all); return how many."""
        self._check_open()
        self._check_loop()
        return await self._relay.replay(numbers)

    async def delete_dead_letters(self, numbers: Sequence[int] | None = None) -> int:
        """Remove dead letters for good, by their numbers (None: all); return how many."""
        self._check_open()
        self._check_loop()
        return await self._relay.delete_dead_letters(numbers)

    # --- observation --------------------------------------------------------------------------------------------

    @property
    def stats(self) -> PublisherStats:
        """Counts since it was opened, and the settings of each target."""
        if self._stage in ("new", "opening"):
            raise PublisherClosed(NOT_OPEN)
        relay, tracker = self._relay, self._tracker
        senders = [sender for senders in self._senders.values() for sender in senders]
        return PublisherStats(
            accepted=relay.accepted,
            from_outbox=relay.from_outbox,
            confirmed=relay.confirmed,
            dropped=self._intake.dropped,
            refused=self._intake.refused,
            rejected=relay.rejected,
            repeated=sum(sender.counts.repeated for sender in senders),
            waiting=relay.waiting,
            in_flight=sum(sender.state.in_flight for sender in senders),
            buffered=self._intake.buffered,
            received=0 if tracker is None else tracker.received,
            sent_again=0 if tracker is None else tracker.sent_again,
            targets=tuple(
                sender.stats(channel, number)
                for channel, senders_of_channel in self._senders.items()
                for number, sender in enumerate(senders_of_channel)
            ),
        )

    @property
    def _senders(self) -> dict[str, list[TargetSender]]:
        return {} if self._stage in ("new", "opening") else self._relay.channels

    @property
    def errors(self) -> list[FlyballError]:
        """The last error of each target that stores nothing at the moment."""
        errors = [sender.problem for senders in self._senders.values() for sender in senders]
        errors += [self._tracker.problem] if self._tracker is not None else []
        return [error for error in errors if error is not None]

    @property
    def problems(self) -> list[str]:
        """One sentence for each target that stores nothing at the moment, and one if messages were rejected."""
        problems = [str(error) for error in self.errors]
        if self._senders and self._relay.rejected:
            problems.append(
                f"{self._relay.rejected} messages were rejected and are dead letters of the outbox, the last one: "
                f"{self._relay.last_rejection}"
            )
        return problems

    def steps(self, channel: str | None = None) -> list[LoopRecord]:
        """The newest steps of the controller, oldest first: what it saw, what it set, and why."""
        senders = self._senders.get(channel or self._channel or "", [])
        return sorted((record for sender in senders for record in sender.records), key=lambda record: record.time)


async def _wait_for_end(task: asyncio.Task[None]) -> None:
    """Wait until the task has ended. Who is cancelled meanwhile waits all the same: half closed it is locked."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
