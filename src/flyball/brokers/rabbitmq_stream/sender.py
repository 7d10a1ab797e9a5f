"""Sending to RabbitMQ streams: a confirm a message, and repeats dropped by the server.

A named producer's messages carry its sequence as publishing id (plus one: the server reports 0 for "none yet");
each stream remembers the highest id of a name, durably, and drops what is not above it. So ids must leave in
order: one batch at a time is written, though several may wait for confirms. A batch that could not be written as a
whole leaves a gap, and what was to follow it is not written either: the stream would take the missing messages
for repeats when they come.

**Watchdog.** While messages are out and nothing moves for half of `confirm_timeout_s` (no confirm comes, and the
server acknowledges no bytes), another connection is opened; if that is not answered within the other half, all
messages in flight fail as unconfirmed and the connection is dropped. A server that answers has `_PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rstream import schema

from flyball.backoff import ReconnectDelay
from flyball.brokers.core.checks import after_gap, check_batch, partition_of
from flyball.brokers.core.tcp_progress import MOVED_BYTES
from flyball.brokers.port import (
    BrokerError,
    Message,
    SendResult,
    TooLarge,
    Unconfirmed,
    Unreachable,
    is_permanent,
)
from flyball.brokers.rabbitmq_stream.codec import encode
from flyball.brokers.rabbitmq_stream.connection import (
    FAILURES,
    StreamClient,
    StreamSettings,
    stream_name,
    to_broker_error,
)
from flyball.futures import wait_at_most

_FRAME_MESSAGES = 1000
_FRAME_BYTES = 1 << 20
_PATIENCE_S = 30.0
_NO_SUCH_PUBLISHER = 18
_KEYLESS_RUN = 256
"""Messages of a named producer without a key go round the partitions by their number, in runs of this length."""


class _Batch:
    """Messages of one call and their outcomes.

    `broken`: a message in it was not stored, or may not have been, and is to be sent again.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.results: list[SendResult | None] = [None] * len(messages)
        self.unanswered = len(messages)
        self.done = asyncio.Event()
        self.broken = False

    def settle(self, index: int, result: SendResult) -> None:
        if self.results[index] is None:
            self.results[index] = result
            self.unanswered -= 1
            if result.error is not None and not is_permanent(result.error):
                self.broken = True
            if not self.unanswered:
                self.done.set()

    def fail(self, error: BrokerError) -> None:
        for index, message in enumerate(self.messages):
            self.settle(index, SendResult(message.id, error))


class StreamSender:
    """Puts messages into the streams of one log; a key chooses the stream, else batches go round."""

    def __init__(self, settings: StreamSettings, log: str, partitions: int, producer: str | None) -> None:
        self._settings = settings
        self._log = log
        self._partitions = partitions
        self._producer = producer
        self._client: StreamClient | None = None
        self._writing = asyncio.Lock()
        self._reconnect_delay = ReconnectDelay()
        self._waiting: list[dict[int, tuple[_Batch, int]]] = [{} for _ in range(partitions)]
        self._stored_ids = [0] * partitions
        """The highest publishing id that each stream has of this producer, as the server reported or confirmed."""
        self._last_ids = [0] * partitions
        """The last publishing id that was used, where there is no producer."""
        self._next_partition = 0
        self._unfinished: list[_Batch] = []
        """Batches whose calls have not returned, in the order of the calls."""
        self._watcher: asyncio.Task[None] | None = None
        self._progress_s = 0.0
        self._acknowledged_bytes = 0
        self.closed = False

    @property
    def blocked(self) -> bool:
        """Always False: the stream protocol does not report back-pressure."""
        return False

    async def open(self) -> None:
        """Connect, and query what each stream already has of this producer."""
        self._check_open()
        if self._client is not None:
            if self._client.is_connection_alive():
                return
            await self._drop(self._client)
        await asyncio.sleep(self._reconnect_delay.remaining_s(time.monotonic()))
        client = await StreamClient.open_to(self._settings, self._on_loss)
        client.add_handler(schema.PublishConfirm, self._on_confirm)
        client.add_handler(schema.PublishError, self._on_error)
        try:
            for number in range(self._partitions):
                await client.declare_publisher(stream_name(self._log, number), self._producer, number)
            await self._query_stored(client)
            self._check_open()
        except FAILURES as error:
            await client.abandon()
            raise to_broker_error(error, self._settings, self._log) from None
        except BaseException:
            await client.abandon()
            raise
        self._client = client
        self._acknowledged_bytes = client.acknowledged_bytes
        self._reconnect_delay.opened(time.monotonic())

    def _check_open(self) -> None:
        if self.closed:
            raise Unreachable(f"this sender to {self._log!r} is closed: open another")

    async def _query_stored(self, client: StreamClient) -> None:
        if self._producer is not None:
            for number in range(self._partitions):
                name = stream_name(self._log, number)
                self._stored_ids[number] = await client.query_publisher_sequence(name, self._producer)

    async def last_sequence(self) -> int | None:
        if self._producer is None:
            return None
        async with self._writing:
            await self.open()
            assert self._client is not None
            try:
                await self._query_stored(self._client)
            except FAILURES as error:
                raise to_broker_error(error, self._settings, self._log) from None
        highest = max(self._stored_ids)
        return highest - 1 if highest else None

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        if not messages:
            return []
        messages, unfit = check_batch(messages)
        batch, before = _Batch(messages), tuple(self._unfinished)
        for index, reason in unfit.items():
            batch.settle(index, SendResult(messages[index].id, reason))
        self._begin_watching(batch)
        try:
            try:
                async with self._writing:
                    await self._open_and_write(batch, sequence if self._producer is not None else None, before)
            except BaseException:
                batch.broken = True
                raise
            await batch.done.wait()
        finally:
            self._unfinished.remove(batch)
        return [result for result in batch.results if result is not None]

    async def _open_and_write(self, batch: _Batch, sequence: int | None, before: Sequence[_Batch]) -> None:
        """Write a batch; on a failure everything in it that has no result yet fails."""
        try:
            await self.open()
            if sequence is not None and any(each.broken for each in before):
                batch.fail(after_gap(self._producer))
            else:
                await self._write(batch, sequence)
        except Unreachable as error:
            batch.fail(Unconfirmed(f"{error}: send it again with the same id"))
        except BrokerError as error:
            batch.fail(error)
        except FAILURES:
            if self._client is not None:
                await self._drop(self._client)
            batch.fail(self._unconfirmed())

    async def _write(self, batch: _Batch, sequence: int | None) -> None:
        assert self._client is not None
        limit, single = self._client.max_body_bytes, self._partitions == 1
        self._next_partition = (self._next_partition + 1) % self._partitions
        frames: list[list[schema.Message]] = [[] for _ in range(self._partitions)]
        entries: list[list[tuple[int, tuple[_Batch, int]]]] = [[] for _ in range(self._partitions)]
        sizes = [0] * self._partitions
        for index, message in enumerate(batch.messages):
            if batch.results[index] is not None:
                continue  # unfit
            if len(message.body) > limit:
                batch.settle(index, SendResult(message.id, self._too_large(len(message.body), limit)))
                continue
            data = encode(message)
            number = 0 if single else self._partition_of(message, sequence, index)
            if sequence is None:
                publishing_id = self._last_ids[number] = self._last_ids[number] + 1
            else:
                publishing_id = sequence + index + 1
                if publishing_id <= self._stored_ids[number]:
                    batch.settle(index, SendResult(message.id, duplicate=True, partition=number))
                    continue
            if frames[number] and (
                sizes[number] + len(data) > _FRAME_BYTES or len(frames[number]) == _FRAME_MESSAGES
            ):
                await self._publish(number, frames[number], entries[number])
                frames[number], entries[number], sizes[number] = [], [], 0
            frames[number].append(schema.Message(publishing_id, None, data))
            entries[number].append((publishing_id, (batch, index)))
            sizes[number] += len(data)
        for number, frame in enumerate(frames):
            if frame:
                await self._publish(number, frame, entries[number])

    def _partition_of(self, message: Message, sequence: int | None, index: int) -> int:
        """The stream of a message. A repeat has to go to the same one: only there it is recognised."""
        if message.key is not None or sequence is None:
            return partition_of(message.key, self._partitions, self._next_partition)
        return (sequence + index) // _KEYLESS_RUN % self._partitions

    async def _publish(
        self, number: int, messages: list[schema.Message], entries: list[tuple[int, tuple[_Batch, int]]]
    ) -> None:
        """Write a frame; `entries` say which message of which batch each publishing id is."""
        client = self._client
        if client is None:
            raise Unreachable(f"the connection to {self._settings.url} was lost while sending")
        self._waiting[number].update(entries)
        await client.send_messages(schema.Publish(number, messages))

    # --- the watchdog -----------------------------------------------------------------------------------------

    def _begin_watching(self, batch: _Batch) -> None:
        if not self._unfinished:
            self._progress_s = time.monotonic()
        self._unfinished.append(batch)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        """While batches are unfinished, also one that is being written: give up a server that does not answer."""
        half_s = self._settings.confirm_timeout_s / 2
        while self._unfinished:
            client = self._client
            acknowledged = 0 if client is None else client.acknowledged_bytes
            if acknowledged - self._acknowledged_bytes >= MOVED_BYTES:  # a large frame on a slow link
                self._acknowledged_bytes, self._progress_s = acknowledged, time.monotonic()
            silent_s = time.monotonic() - self._progress_s
            if silent_s < half_s or client is None:
                await asyncio.sleep(max(half_s - silent_s, half_s / 10))
            elif silent_s > _PATIENCE_S or not await self._is_reachable(half_s):
                await self._drop(client)
            else:
                await asyncio.sleep(half_s)

    async def _is_reachable(self, timeout_s: float) -> bool:
        try:
            probe = await wait_at_most(StreamClient.open_to(self._settings), timeout_s)
        except (BrokerError, TimeoutError):
            return False
        await probe.abandon()
        return True

    async def _drop(self, client: StreamClient) -> None:
        self._on_loss(client)
        await client.abandon()

    # --- what the connection reports ----------------------------------------------------------------------------

    def _on_loss(self, client: StreamClient) -> None:
        """The connection is lost: everything waiting is settled as unconfirmed."""
        if client is not self._client:
            return
        self._client = None
        self._reconnect_delay.lost(time.monotonic())
        for waiting in self._waiting:
            for batch, index in waiting.values():
                batch.settle(index, SendResult(batch.messages[index].id, self._unconfirmed()))
            waiting.clear()

    def _on_confirm(self, frame: schema.PublishConfirm) -> None:
        self._progress_s = time.monotonic()
        number, ids = frame.publisher_id, frame.publishing_ids
        take = self._waiting[number].pop
        for publishing_id in ids:
            entry = take(publishing_id, None)
            if entry is not None:
                batch, index = entry
                batch.settle(index, SendResult(batch.messages[index].id, partition=number))
        if self._producer is not None and ids:
            self._stored_ids[number] = max(self._stored_ids[number], max(ids))

    def _on_error(self, frame: schema.PublishError) -> None:
        self._progress_s = time.monotonic()
        unknown = False
        for each in frame.errors:
            unknown |= each.response_code == _NO_SUCH_PUBLISHER
            entry = self._waiting[frame.publisher_id].pop(each.publishing_id, None)
            if entry is not None:
                batch, index = entry
                error = (
                    self._unconfirmed()
                    if each.response_code == _NO_SUCH_PUBLISHER
                    else BrokerError(f"{self._settings.url} refused a message (code {each.response_code})")
                )
                batch.settle(index, SendResult(batch.messages[index].id, error))
        if unknown and self._client is not None:
            # A server that came back does not know this publisher: the next connection declares it again.
            self._client.cut()

    def _unconfirmed(self) -> Unconfirmed:
        return Unconfirmed(
            f"{self._settings.url} did not confirm within {self._settings.confirm_timeout_s:.1f} s: the message "
            "may be stored or not; send it again with the same id"
        )

    def _too_large(self, size: int, limit: int) -> TooLarge:
        return TooLarge(
            f"a message of {size} bytes is too large for {self._settings.url}: at most {limit} bytes "
            "(the server's stream.frame_max)"
        )

    async def close(self) -> None:
        self.closed = True
        if self._watcher is not None:
            self._watcher.cancel()
        if self._client is not None:
            await self._drop(self._client)
