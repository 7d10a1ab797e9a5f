"""Sends to RabbitMQ with publisher confirms: a result for every message, without waiting for each.

Confirms may come for one message or for all up to one (`multiple`), so what is outstanding is kept as runs of
consecutive numbers with one byte a message; a confirm for a thousand messages is two operations on bytes.

One publish goes to the queue of the channel's name and to all groups. Two cases need more than a confirm:

* **A full queue** (`max_bytes`) refuses a message that the groups have stored. It is sent to the queue alone then,
  else each attempt would give every group another copy. That the queue refuses, and not a limit that somebody has
  set for a group, is known when the queue refuses what was sent to it alone; until then, and when the queue has
  stored all that it refused, repeats go to all.
* **A queue that another program deletes and declares again** is not bound to our exchange, and while a group
  matches nothing is returned. So a marker is bound to the queue, an exchange that the broker deletes together with
  the queue's bindings (see `admin`), and each run begins with the question whether it is there. If so, there is no
  answer; else the broker closes the channel and drops what follows, the queue is bound again and the run repeated.
  A queue that is deleted between question and message is as one deleted just after the message.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from pika import frame, spec
from pika.exceptions import AMQPError, ChannelClosedByBroker

from flyball.backoff import delays_s
from flyball.brokers.core.checks import check_batch, queue_full, too_large
from flyball.brokers.port import (
    Blocked,
    BrokerError,
    Message,
    NoSuchChannel,
    SendResult,
    Unconfirmed,
    Unreachable,
)
from flyball.brokers.rabbitmq.admin import Route
from flyball.brokers.rabbitmq.codec import APP_ID, PublishFrames, to_properties
from flyball.brokers.rabbitmq.config import EXCHANGE
from flyball.brokers.rabbitmq.connection import Link, OpenChannel
from flyball.brokers.rabbitmq.pika_internals import write

log = logging.getLogger(__name__)

_RUN = 256  # messages published before other tasks and the socket may run
_RUNS_AHEAD = 4  # runs that may be unconfirmed at once: bounds the unknown outcomes of a lost connection
_LOOK_S = 0.5  # where no marker shows it: how often the queue is bound again, at most
_MOST_REFUSED = 100_000
_NOT_FOUND = 404

_UNKNOWN, _STORED, _REFUSED, _RETURNED = 0, 1, 2, 3


class _Run:
    """Messages published with consecutive numbers, and the outcome of each as far as it is known."""

    __slots__ = ("done", "end_bytes", "first", "ids", "outcomes", "replaced", "unanswered")

    def __init__(self, first: int, ids: list[str], done: asyncio.Future[None]) -> None:
        self.first = first
        self.ids = ids
        self.outcomes = bytearray(len(ids))
        self.unanswered = len(ids)
        self.done = done
        self.end_bytes = 0  # what was written to the connection up to the end of this run
        self.replaced = False  # the queue was deleted

    def settle(self, low: int, high: int, outcome: int) -> None:
        """Set the outcome of messages low <= i < high, where it is unknown."""
        outcomes = self.outcomes
        if high - low == 1:
            if outcomes[low] == _UNKNOWN:
                outcomes[low] = outcome
                self.unanswered -= 1
            return
        fresh = outcomes.count(_UNKNOWN, low, high)
        if fresh == high - low:
            outcomes[low:high] = bytes((outcome,)) * fresh
        else:
            for at in range(low, high):
                if outcomes[at] == _UNKNOWN:
                    outcomes[at] = outcome
        self.unanswered -= fresh


class _QueueReplaced(Unconfirmed):
    """Sent while the queue was deleted, perhaps declared again by another program."""


class RabbitSender:
    """See `port.Sender`. `bind` makes sure that a queue of this name gets what is published to the exchange."""

    def __init__(
        self,
        link: Link,
        channel: str,
        *,
        bind: Callable[[str], Awaitable[Route | None]],
        blocked_timeout_s: float,
        max_body_bytes: int,
    ) -> None:
        self._link = link
        self._channel_name = channel
        self._bind = bind
        self._blocked_timeout_s = blocked_timeout_s
        self._max_body_bytes = max_body_bytes
        self._frames: PublishFrames
        self._queue_frames: PublishFrames  # to the queue alone
        self._question = b""  # whether the marker is there
        self._look_due_s = 0.0
        self._queue_refuses = False
        self._refused: dict[str, None] = {}  # ids that the groups have and the queue has not, oldest first
        self._channel: OpenChannel | None = None
        self._opening = asyncio.Lock()
        self._published = 0
        self._runs: deque[_Run] = deque()
        self._returned: dict[str, None] = {}
        self._full = False
        self._closed = False
        self._stuck_at = 0
        self._stuck_since_s = 0.0
        self._delivered_bytes = 0
        link.on_lost.append(self._on_loss)
        link.on_tick.append(self._tick)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def blocked(self) -> bool:
        return self._full or self._link.blocked

    async def last_sequence(self) -> int | None:
        return None

    async def open(self) -> None:
        """Connect and bind this channel's queue."""
        await self._open_channel()

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:  # noqa: ARG002  queues keep no sequences
        messages, unfit = check_batch(messages)
        if unfit:
            fit = iter(await self.send_batch([each for at, each in enumerate(messages) if at not in unfit]))
            return [
                SendResult(each.id, unfit[at]) if at in unfit else next(fit) for at, each in enumerate(messages)
            ]
        outcomes = await self._publish(messages)
        if all(outcome is None for outcome in outcomes):
            return [SendResult(message.id) for message in messages]
        if any(isinstance(outcome, _QueueReplaced) for outcome in outcomes):
            await self._resend(messages, outcomes, _QueueReplaced)
        if any(isinstance(outcome, NoSuchChannel) for outcome in outcomes):
            # Another program may have declared the queue after this sender was opened: try once more.
            with suppress(BrokerError):  # the results of the others count
                if await self._find_queue():
                    await self._resend(messages, outcomes, NoSuchChannel)
        if any(isinstance(outcome, Blocked) for outcome in outcomes) and not self._link.blocked:
            await self._retry_while_full(messages, outcomes)
        return [SendResult(message.id, outcome) for message, outcome in zip(messages, outcomes, strict=True)]

    async def _retry_while_full(self, messages: Sequence[Message], outcomes: list[BrokerError | None]) -> None:
        """Send again what a full queue refused, until it fits or the time is used up."""
        deadline = time.monotonic() + self._blocked_timeout_s
        self._full = True
        try:
            for attempt, wait_s in enumerate(delays_s(10_000, longest_s=0.5)):
                if time.monotonic() + wait_s > deadline:
                    break
                await asyncio.sleep(wait_s)
                await self._check_who_refuses(messages, outcomes, 1 if attempt == 0 else len(messages))
                await self._resend(messages, outcomes, Blocked)
                if not any(isinstance(outcome, Blocked) for outcome in outcomes):
                    break
        finally:
            self._full = False

    async def _check_who_refuses(
        self, messages: Sequence[Message], outcomes: list[BrokerError | None], count: int
    ) -> None:
        """Find out whether the queue refuses: send up to `count` messages to it alone.

        One shows little where consumers make room for one now and then: each repeat of the others would be another
        copy for every group. So it is all of them from the second time on.
        """
        stored: list[int] = []
        if not self._queue_refuses:
            unclear = [
                at
                for at, outcome in enumerate(outcomes)
                if isinstance(outcome, Blocked) and messages[at].id not in self._refused
            ]
            stored = await self._send_to_queue(messages, unclear[:count])
        if self._queue_refuses:
            for at in stored:
                outcomes[at] = None  # the groups have had it before
            self._refused |= dict.fromkeys(
                message.id
                for message, outcome in zip(messages, outcomes, strict=True)
                if isinstance(outcome, Blocked)
            )

    async def _send_to_queue(self, messages: Sequence[Message], indices: Sequence[int]) -> list[int]:
        """Send some of the messages to the queue alone; return those that it has stored."""
        ids = [messages[at].id for at in indices]
        self._refused |= dict.fromkeys(ids)
        try:
            outcomes = await self._publish([messages[at] for at in indices])
        finally:
            if not self._queue_refuses:
                for id in ids:
                    self._refused.pop(id, None)
        return [at for at, outcome in zip(indices, outcomes, strict=True) if outcome is None]

    async def _resend(
        self, messages: Sequence[Message], outcomes: list[BrokerError | None], error_type: type[BrokerError]
    ) -> None:
        indices = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, error_type)]
        for at, outcome in zip(indices, await self._publish([messages[at] for at in indices]), strict=True):
            outcomes[at] = outcome

    async def _publish(self, messages: Sequence[Message]) -> list[BrokerError | None]:
        """Publish once and wait for the confirms; the error of each message, None if it is stored."""
        if self._closed:
            return [Unreachable(f"this sender to {self._channel_name!r} is closed: open another")] * len(messages)
        if self._link.blocked and not await self._link.wait_unblocked(self._blocked_timeout_s):
            error = Blocked(
                f"the broker of {self._channel_name!r} has been out of memory or disk for "
                f"{self._blocked_timeout_s:g} s: send again when it has recovered"
            )
            return [error] * len(messages)
        try:
            channel = await self._open_channel()
            if not self._question and time.monotonic() >= self._look_due_s:
                await self._find_queue()
        except BrokerError as error:
            return [error] * len(messages)
        outcomes: list[BrokerError | None] = [None] * len(messages)
        in_flight: deque[tuple[_Run, list[int]]] = deque()
        for start in range(0, len(messages), _RUN):
            # An aborted connection is lost before its channels close: a run there would never be settled.
            if channel is self._channel and channel.is_open:
                try:
                    in_flight.append(self._publish_run(channel, messages, start, outcomes))
                except Exception as error:  # a fault of the client library must not hide what is stored
                    log.exception("%s: sending failed in a way that no broker error describes", self._channel_name)
                    fault = Unconfirmed(
                        f"sending to {self._channel_name!r} raised {type(error).__name__}: {error}"
                    )
                    outcomes[start:] = [fault] * (len(messages) - start)
                    break
            else:
                lost = Unreachable(f"the connection was lost before this was sent to {self._channel_name!r}")
                outcomes[start:] = [lost] * (len(messages) - start)
                break
            if len(in_flight) >= _RUNS_AHEAD:
                await self._collect(*in_flight.popleft(), outcomes)
            elif start + _RUN < len(messages):
                await asyncio.sleep(0)
        for run, indices in in_flight:
            await self._collect(run, indices, outcomes)
        return outcomes

    def _publish_run(
        self, channel: OpenChannel, messages: Sequence[Message], start: int, outcomes: list[BrokerError | None]
    ) -> tuple[_Run, list[int]]:
        limit, refused = self._max_body_bytes, self._refused
        indices: list[int] = []
        ids: list[str] = []
        pieces = [self._question] if self._question else []
        for at in range(start, min(start + _RUN, len(messages))):
            message = messages[at]
            if len(message.body) > limit:
                outcomes[at] = too_large(message, limit)
                continue
            frames = self._queue_frames if refused and message.id in refused else self._frames
            try:
                frames.append(pieces, to_properties(message), message.body)
            except BrokerError as error:
                outcomes[at] = error
                continue
            indices.append(at)
            ids.append(message.id)
        run = _Run(self._published + 1, ids, asyncio.get_running_loop().create_future())
        if not ids:
            run.done.set_result(None)
            return run, indices
        write(channel.raw.connection, pieces)
        run.end_bytes = self._link.written_bytes
        self._published += len(ids)
        self._runs.append(run)
        self._link.pending_answers += 1
        return run, indices

    async def _collect(self, run: _Run, indices: list[int], outcomes: list[BrokerError | None]) -> None:
        await run.done
        run_outcomes = run.outcomes
        if run_outcomes.count(_STORED) == len(run_outcomes):
            if self._refused or self._queue_refuses:
                for id in run.ids:
                    self._end_refusal(id)
            return
        name = self._channel_name
        for at, outcome, id in zip(indices, run_outcomes, run.ids, strict=True):
            if outcome == _UNKNOWN:
                unconfirmed = _QueueReplaced if run.replaced else Unconfirmed
                outcomes[at] = unconfirmed(
                    f"message {id} was sent to {name!r} and not confirmed: it may be stored; send it again"
                )
            elif outcome == _REFUSED:
                outcomes[at] = queue_full(name, self._blocked_timeout_s)
                self._queue_refuses |= id in self._refused
                if self._queue_refuses:
                    self._refused[id] = None
                    if len(self._refused) > _MOST_REFUSED:
                        del self._refused[next(iter(self._refused))]
            elif outcome == _RETURNED:
                self._refused.pop(id, None)  # there is no queue to have it
                outcomes[at] = NoSuchChannel(
                    f"no queue or group receives what is sent to {name!r}: declare it first "
                    "(broker.declare, or flyball publish --declare queue)"
                )
            else:
                self._end_refusal(id)

    def _end_refusal(self, id: str) -> None:
        """The queue has a message: it refuses no longer if this was sent to all, or was the last one refused."""
        was_refused = id in self._refused
        self._refused.pop(id, None)
        if not was_refused or not self._refused:
            self._queue_refuses = False

    def _tick(self) -> None:
        """Called by the link at every check: end the wait for a broker that is alive and confirms nothing."""
        now_s, delivered_bytes = time.monotonic(), self._link.delivered_bytes
        before_bytes, self._delivered_bytes = self._delivered_bytes, delivered_bytes
        if not self._runs or before_bytes < min(delivered_bytes, self._runs[0].end_bytes):
            self._stuck_since_s = now_s  # nothing is awaited, or it is on its way and moves
        elif not self._link.blocked and self._runs[0].first != self._stuck_at:
            self._stuck_at, self._stuck_since_s = self._runs[0].first, now_s
        elif now_s - self._stuck_since_s > self._blocked_timeout_s:
            # Report what is unconfirmed rather than wait longer.
            runs, self._runs = self._runs, deque()
            for run in runs:
                self._finish(run)

    async def _open_channel(self) -> OpenChannel:
        channel = self._channel
        if channel is not None and channel.is_open:
            return channel
        async with self._opening:
            if self._channel is not None and self._channel.is_open:
                return self._channel
            await self._link.open()
            channel = await self._link.channel()
            channel.on_close = lambda reason: self._on_close(channel, reason)
            channel.raw.add_on_return_callback(self._on_return)
            try:
                await channel.call(channel.raw.confirm_delivery, self._on_confirm)
            except BaseException as error:
                with suppress(AMQPError):
                    channel.raw.close()
                if isinstance(error, AMQPError | TimeoutError):
                    raise Unreachable(
                        f"the connection was lost before {self._channel_name!r} was open: {error!r}"
                    ) from None
                raise
            self._published = 0
            self._use(channel, None)
            self._look_due_s = 0.0  # until the queue is bound, each call looks for it
            self._channel = channel
            # After a loss the exchange may be missing too: a broker restarted without its data, or a deletion.
            await self._find_queue()
            return channel

    async def _find_queue(self) -> bool:
        """Bind the queue again, or find out that it is not there (False)."""
        route = await self._bind(self._channel_name)
        if self._channel is not None:
            self._use(self._channel, route)
        return route is not None

    def _use(self, channel: OpenChannel, route: Route | None) -> None:
        """Publish on this channel to our exchange, or to the default one where we may not bind the queue."""
        self._frames = self._frames_on(channel, EXCHANGE if route is None else route.exchange)
        self._queue_frames = self._frames_on(channel, "")
        self._look_due_s = time.monotonic() + _LOOK_S
        self._question = b""
        if route is not None and route.marker is not None:
            question = spec.Exchange.Declare(exchange=route.marker, type="fanout", passive=True, nowait=True)
            self._question = frame.Method(channel.raw.channel_number, question).marshal()
        elif route is not None and not route.exchange:
            self._look_due_s = math.inf  # the default exchange leads to every queue of this name

    def _frames_on(self, channel: OpenChannel, exchange: str) -> PublishFrames:
        raw = channel.raw
        return PublishFrames(
            raw.channel_number, exchange, self._channel_name, raw.connection.params.frame_max, APP_ID
        )

    def _on_return(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        # The broker returns a message just before it confirms it.
        self._returned[properties.message_id] = None

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tag = method.delivery_tag
        outcome = _STORED if method.NAME == "Basic.Ack" else _REFUSED
        runs = self._runs
        if method.multiple:
            for run in runs:
                if run.first > tag:
                    break
                run.settle(0, min(tag - run.first + 1, len(run.ids)), outcome)
            while runs and not runs[0].unanswered:
                self._finish(runs.popleft())
            return
        for run in runs:
            if tag < run.first + len(run.ids):
                if tag >= run.first:
                    run.settle(tag - run.first, tag - run.first + 1, outcome)
                    if not run.unanswered:
                        runs.remove(run)
                        self._finish(run)
                return

    def _finish(self, run: _Run) -> None:
        self._link.pending_answers -= 1
        if self._returned:
            for at, id in enumerate(run.ids):
                if id in self._returned:
                    run.outcomes[at] = _RETURNED
            for id in run.ids:
                self._returned.pop(id, None)
        if not run.done.done():
            run.done.set_result(None)

    def _on_close(self, channel: OpenChannel, reason: BaseException) -> None:
        if channel is not self._channel:
            return
        # Nothing else that a sender does on its channel can fail like this: the marker is missing.
        if isinstance(reason, ChannelClosedByBroker) and reason.reply_code == _NOT_FOUND:
            for run in self._runs:
                run.replaced = True
        self._on_loss()

    def _on_loss(self) -> None:
        """The channel is lost: the outcome of what was not confirmed stays unknown."""
        self._channel = None
        self._returned.clear()
        runs, self._runs = self._runs, deque()
        for run in runs:
            self._finish(run)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        channel, self._channel = self._channel, None
        self._link.on_lost.remove(self._on_loss)
        self._link.on_tick.remove(self._tick)
        if channel is not None:
            await self._link.close_channel(channel)
        self._on_loss()
