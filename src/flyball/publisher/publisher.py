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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flyball.brokers import Message
from flyball.brokers.core.names import check_name
from flyball.brokers.port import HeaderValue, Kind, new_id
from flyball.control.controllers import catalogue
from flyball.control.record import LoopRecord
from flyball.control.step import Controller
from flyball.errors import FlyballError, InvalidValue
from flyball.publisher.handle import Dropped, Handle, check_fit
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
from flyball.publisher.store_workers import WorkerPool
from flyball.publisher.target_sender import Targets, TargetSender, TargetStats
from flyball.store.outbox import USUAL, check_urgency

_OVERHEAD_BYTES = 200


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
        self._workers, self._close_timeout_s = workers, close_timeout_s
        self._pool: WorkerPool | None = None
        self._outbox: PublisherOutbox | None = None
        self._tracker: ReceiptTracker | None = None
        self._intake: Intake
        self._relay: Relay
        self._open = False

    # --- life cycle ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        first_sequence = 0 if self._ordering is None else self._ordering.first_sequence
        pool = self._pool = WorkerPool(self._workers)
        try:
            outbox = self._outbox = await pool.run("receive", open_outbox, self._outbox_config, first_sequence)
            relay = self._relay = Relay(
                outbox,
                pool,
                self._targets,
                newest=await pool.run("publish", outbox.newest),
                required=self._required,
                urgency_step_s=self._urgency_step_s,
            )
            self._intake = Intake(relay, capacity=self._buffer, when_full=self._when_full)
            if self._receipts is None or self._receipts_channel is None:
                await pool.run("publish", outbox.forget_sent)
            else:
                self._tracker = relay.receipts = ReceiptTracker(
                    outbox.unreceipted(self._required, self._urgency_step_s),
                    pool,
                    urls=self._targets.urls,
                    channel=self._receipts_channel,
                    timeout_s=self._receipts.timeout_s,
                    resend=relay.resend,
                    on_receipts=relay.on_receipts,
                    is_behind=relay.is_behind,
                )
            self._open = True
            if self._channel is not None:
                await relay.open(self._channel)
        except BaseException:
            await self._release()
            raise
        relay.start()
        if self._tracker is not None:
            self._tracker.start()
        return self

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
        await self._relay.drain()

    async def _finish(self) -> None:
        try:
            await asyncio.wait_for(self._wait_all_done(), self._close_timeout_s)
        except TimeoutError:
            if self._relay.in_memory:
                reasons = "; ".join(self.problems) or "the broker is slow"
                unreceipted = 0 if self._tracker is None else await self._tracker.waiting()
                without = f", {unreceipted} had no receipt" if unreceipted else ""
                raise Undelivered(
                    f"{self._relay.unconfirmed} messages were not confirmed{without} within "
                    f"{self._close_timeout_s:g} s ({reasons}) and are lost, because the outbox is in memory: "
                    "use a file, or raise close_timeout_s"
                ) from None

    async def _wait_all_done(self) -> None:
        """Wait until all is confirmed, and what would be lost with this process has its receipts."""
        await self.drain()
        if self._tracker is not None:
            await (self._tracker.wait_all_received() if self._relay.in_memory else self._tracker.flush())

    async def _release(self) -> None:
        self._open = False
        if self._tracker is not None:
            await self._tracker.close()
        if hasattr(self, "_intake"):
            await self._relay.close()
            await self._intake.close()
        if self._pool is not None:
            await asyncio.to_thread(self._pool.close)
        if self._outbox is not None:
            self._outbox.close()

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
        self._relay.senders(name)
        await self._intake.accept(handles)
        for handle in handles:
            if handle._error is not None and not handle.accepted and not isinstance(handle._error, Dropped):
                raise handle._error
        return handles

    # --- observation --------------------------------------------------------------------------------------------

    @property
    def stats(self) -> PublisherStats:
        """Counts since it was opened, and the settings of each target."""
        relay, tracker = self._relay, self._tracker
        senders = [sender for senders in self._senders.values() for sender in senders]
        return PublisherStats(
            accepted=relay.accepted,
            confirmed=relay.confirmed,
            dropped=self._intake.dropped,
            refused=self._intake.refused,
            rejected=relay.rejected,
            repeated=sum(sender.counts.repeated for sender in senders),
            waiting=relay.unconfirmed,
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
        return {} if self._outbox is None else self._relay.channels

    @property
    def errors(self) -> list[FlyballError]:
        """The last error of each target that stores nothing at the moment."""
        errors = [sender.problem for senders in self._senders.values() for sender in senders]
        errors += [self._tracker.problem] if self._tracker is not None else []
        return [error for error in errors if error is not None]

    @property
    def problems(self) -> list[str]:
        """One sentence for each target that stores nothing at the moment."""
        return [str(error) for error in self.errors]

    def steps(self, channel: str | None = None) -> list[LoopRecord]:
        """The newest steps of the controller, oldest first: what it saw, what it set, and why."""
        senders = self._senders.get(channel or self._channel or "", [])
        return sorted((record for sender in senders for record in sender.records), key=lambda record: record.time)
