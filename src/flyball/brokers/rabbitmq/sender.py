"""Sends to RabbitMQ with publisher confirms: a result for every message, without waiting for each.

Confirms may come for one message or for all up to one (`multiple`), so what is outstanding is kept as runs of
consecutive numbers with one byte a message; a confirm for a thousand messages is two operations on bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flyball.backoff import delays_s
from flyball.brokers.core.checks import queue_full, too_large
from flyball.brokers.port import (
    Blocked,
    BrokerError,
    Message,
    NoSuchChannel,
    SendResult,
    Unconfirmed,
    Unreachable,
)
from flyball.brokers.rabbitmq.codec import APP_ID, PublishFrames, to_properties
from flyball.brokers.rabbitmq.config import EXCHANGE
from flyball.brokers.rabbitmq.connection import Link, OpenChannel
from flyball.brokers.rabbitmq.pika_internals import write

_RUN = 256  # messages published before other tasks and the socket may run
_RUNS_AHEAD = 4  # runs that may be unconfirmed at once: bounds the unknown outcomes of a lost connection

_UNKNOWN, _STORED, _REFUSED, _RETURNED = 0, 1, 2, 3


class _Run:
    """Messages published with consecutive numbers, and the outcome of each as far as it is known."""

    __slots__ = ("done", "first", "ids", "outcomes", "unanswered")

    def __init__(self, first: int, ids: list[str], done: asyncio.Future[None]) -> None:
        self.first = first
        self.ids = ids
        self.outcomes = bytearray(len(ids))
        self.unanswered = len(ids)
        self.done = done

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


class RabbitSender:
    """See `port.Sender`. `bind` makes sure that a queue of this name gets what is published to the exchange."""

    def __init__(
        self,
        link: Link,
        channel: str,
        *,
        bind: Callable[[str], Awaitable[str | None]],
        blocked_timeout_s: float,
        max_body_bytes: int,
    ) -> None:
        self._link = link
        self._channel_name = channel
        self._bind = bind
        self._blocked_timeout_s = blocked_timeout_s
        self._max_body_bytes = max_body_bytes
        self._frames: PublishFrames
        self._channel: OpenChannel | None = None
        self._opening = asyncio.Lock()
        self._published = 0
        self._runs: deque[_Run] = deque()
        self._returned: dict[str, None] = {}
        self._full = False
        self._closed = False
        self._stuck_at = 0
        self._stuck_since_s = 0.0
        link.on_lost.append(self._on_loss)
        link.on_tick.append(self._tick)

    @property
    def blocked(self) -> bool:
        return self._full or self._link.blocked

    async def last_sequence(self) -> int | None:
        return None

    async def open(self) -> None:
        """Connect and bind this channel's queue."""
        await self._open_channel()

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:  # noqa: ARG002  queues keep no sequences
        outcomes = await self._publish(messages)
        if all(outcome is None for outcome in outcomes):
            return [SendResult(message.id) for message in messages]
        if any(isinstance(outcome, NoSuchChannel) for outcome in outcomes) and await self._find_queue():
            # Another program declared the queue after this sender was opened: try once more.
            await self._resend(messages, outcomes, NoSuchChannel)
        if any(isinstance(outcome, Blocked) for outcome in outcomes) and not self._link.blocked:
            await self._retry_while_full(messages, outcomes)
        return [SendResult(message.id, outcome) for message, outcome in zip(messages, outcomes, strict=True)]

    async def _retry_while_full(self, messages: Sequence[Message], outcomes: list[BrokerError | None]) -> None:
        """Send again what a full queue refused, until it fits or the time is used up."""
        deadline = time.monotonic() + self._blocked_timeout_s
        self._full = True
        try:
            for wait_s in delays_s(10_000, longest_s=0.5):
                if time.monotonic() + wait_s > deadline:
                    break
                await asyncio.sleep(wait_s)
                await self._resend(messages, outcomes, Blocked)
                if not any(isinstance(outcome, Blocked) for outcome in outcomes):
                    break
        finally:
            self._full = False

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
        except BrokerError as error:
            return [error] * len(messages)
        outcomes: list[BrokerError | None] = [None] * len(messages)
        in_flight: deque[tuple[_Run, list[int]]] = deque()
        for start in range(0, len(messages), _RUN):
            # An aborted connection is lost before its channels close: a run there would never be settled.
            if channel is self._channel and channel.is_open:
                in_flight.append(self._publish_run(channel, messages, start, outcomes))
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
        frames, limit = self._frames, self._max_body_bytes
        indices: list[int] = []
        ids: list[str] = []
        pieces: list[bytes] = []
        for at in range(start, min(start + _RUN, len(messages))):
            message = messages[at]
            if len(message.body) > limit:
                outcomes[at] = too_large(message, limit)
                continue
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
        self._published += len(ids)
        self._runs.append(run)
        self._link.pending_answers += 1
        return run, indices

    async def _collect(self, run: _Run, indices: list[int], outcomes: list[BrokerError | None]) -> None:
        await run.done
        run_outcomes = run.outcomes
        if run_outcomes.count(_STORED) == len(run_outcomes):
            return
        name = self._channel_name
        for at, outcome, id in zip(indices, run_outcomes, run.ids, strict=True):
            if outcome == _UNKNOWN:
                outcomes[at] = Unconfirmed(
                    f"message {id} was sent to {name!r} and not confirmed: it may be stored; send it again"
                )
            elif outcome == _REFUSED:
                outcomes[at] = queue_full(name, self._blocked_timeout_s)
            elif outcome == _RETURNED:
                outcomes[at] = NoSuchChannel(
                    f"no queue or group receives what is sent to {name!r}: declare it first "
                    "(broker.declare, or flyball publish --declare queue)"
                )

    def _tick(self) -> None:
        """Called by the link at every check: end the wait for a broker that is alive and confirms nothing."""
        now_s = time.monotonic()
        if not self._runs:
            self._stuck_since_s = now_s
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
            channel.on_close = lambda _: self._on_loss() if self._channel is channel else None
            channel.raw.add_on_return_callback(self._on_return)
            await channel.call(channel.raw.confirm_delivery, self._on_confirm)
            self._published = 0
            self._frames = self._frames_on(channel, EXCHANGE)
            self._channel = channel
            # After a loss the exchange may be missing too: a broker restarted without its data, or a deletion.
            await self._find_queue()
            return channel

    async def _find_queue(self) -> bool:
        """Choose the exchange: ours, or the default one where we may not bind the queue; False: no such queue."""
        exchange = await self._bind(self._channel_name)
        if self._channel is not None:
            self._frames = self._frames_on(self._channel, EXCHANGE if exchange is None else exchange)
        return exchange is not None

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
            while runs and runs[0].first <= tag:
                run = runs[0]
                run.settle(0, min(tag - run.first + 1, len(run.ids)), outcome)
                if run.unanswered:
                    break
                runs.popleft()
                self._finish(run)
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
            await channel.close()
        self._on_loss()
