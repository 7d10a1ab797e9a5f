"""Sending to RabbitMQ streams: a confirm a message, and repeats dropped by the server.

A named producer's messages carry its sequence as publishing id (plus one: the server reports 0 for "none yet");
each stream remembers the highest id of a name, durably, and drops what is not above it. So ids must leave in
order: one batch at a time is written, though several may wait for confirms.

**Watchdog.** If nothing was confirmed for half of `confirm_timeout_s`, another connection is opened; if that is
not answered within the other half, all messages in flight fail as unconfirmed and the connection is dropped.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from contextlib import suppress

from rstream import schema

from flyball.brokers.port import BrokerError, Message, SendResult, TooLarge, Unconfirmed, Unreachable
from flyball.brokers.rabbitmq_stream.codec import encode
from flyball.brokers.rabbitmq_stream.connection import (
    FAILURES,
    StreamClient,
    StreamSettings,
    stream_name,
    to_broker_error,
)
from flyball.errors import InvalidValue

_FRAME_MESSAGES = 1000
_FRAME_BYTES = 1 << 20
_PATIENCE_S = 30.0
_NO_SUCH_PUBLISHER = 18


class UnfitMessage(BrokerError, InvalidValue):
    """A message that cannot be encoded."""


class _Batch:
    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.results: list[SendResult | None] = [None] * len(messages)
        self.unanswered = len(messages)
        self.done = asyncio.Event()

    def settle(self, index: int, result: SendResult) -> None:
        if self.results[index] is None:
            self.results[index] = result
            self.unanswered -= 1
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
        self._waiting: list[dict[int, tuple[_Batch, int]]] = [{} for _ in range(partitions)]
        self._last = [0] * partitions
        self._next_partition = 0
        self._confirms = 0

    @property
    def blocked(self) -> bool:
        """Always False: the stream protocol does not report back-pressure."""
        return False

    async def open(self) -> None:
        """Connect, and query what each stream already has of this producer."""
        if self._client is not None and self._client.is_connection_alive():
            return
        client = await StreamClient.open_to(self._settings, self._on_loss)
        client.add_handler(schema.PublishConfirm, self._on_confirm)
        client.add_handler(schema.PublishError, self._on_error)
        try:
            for number in range(self._partitions):
                name = stream_name(self._log, number)
                await client.declare_publisher(name, self._producer, number)
                if self._producer is not None:
                    self._last[number] = await client.query_publisher_sequence(name, self._producer)
        except FAILURES as error:
            await client.abandon()
            raise to_broker_error(error, self._settings, self._log) from None
        self._client = client

    async def last_sequence(self) -> int | None:
        if self._producer is None:
            return None
        await self.open()
        highest = max(self._last)
        return highest - 1 if highest else None

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        if not messages:
            return []
        batch = _Batch(messages)
        async with self._writing:
            try:
                await self.open()
                await self._write(batch, sequence if self._producer is not None else None)
            except Unreachable as error:
                batch.fail(Unconfirmed(f"{error}: send it again with the same id"))
            except BrokerError as error:
                batch.fail(error)
        await self._wait_for_confirms(batch)
        return [result for result in batch.results if result is not None]

    async def _write(self, batch: _Batch, sequence: int | None) -> None:
        assert self._client is not None
        limit = self._client.max_body_bytes
        self._next_partition = (self._next_partition + 1) % self._partitions
        frames: list[list[schema.Message]] = [[] for _ in range(self._partitions)]
        sizes = [0] * self._partitions
        for index, message in enumerate(batch.messages):
            if self._partitions == 1:
                number = 0
            else:
                number = (
                    self._next_partition if message.key is None else zlib.crc32(message.key) % self._partitions
                )
            if sequence is not None and sequence + index + 1 <= self._last[number]:
                batch.settle(index, SendResult(message.id, duplicate=True, partition=number))
                continue
            try:
                data = encode(message)
            except (TypeError, ValueError, AttributeError, OverflowError) as error:
                batch.settle(index, SendResult(message.id, _unfit(message, error)))
                continue
            if len(message.body) > limit:
                batch.settle(index, SendResult(message.id, self._too_large(len(message.body), limit)))
                continue
            number_id = self._last[number] + 1 if sequence is None else sequence + index + 1
            self._last[number] = number_id
            self._waiting[number][number_id] = (batch, index)
            if frames[number] and (
                sizes[number] + len(data) > _FRAME_BYTES or len(frames[number]) == _FRAME_MESSAGES
            ):
                await self._publish(number, frames[number])
                frames[number], sizes[number] = [], 0
            frames[number].append(schema.Message(number_id, None, data))
            sizes[number] += len(data)
        for number, frame in enumerate(frames):
            if frame:
                await self._publish(number, frame)

    async def _publish(self, number: int, messages: list[schema.Message]) -> None:
        client = self._client
        if client is None or not client.is_connection_alive():
            return  # `_on_loss` has settled, or will settle, what was to go
        with suppress(*FAILURES):
            await client.send_publish_frame(schema.Publish(number, messages))

    async def _wait_for_confirms(self, batch: _Batch) -> None:
        """Wait for the batch; probe a server that confirms nothing at all."""
        waited_s, half_s = 0.0, self._settings.confirm_timeout_s / 2
        while not batch.done.is_set():
            before = self._confirms
            with suppress(TimeoutError):
                await asyncio.wait_for(batch.done.wait(), half_s)
                return
            if self._confirms != before:
                waited_s = 0.0
                continue
            waited_s += half_s
            if waited_s > _PATIENCE_S or not await self._is_reachable(half_s):
                await self._give_up()
                batch.fail(self._unconfirmed())

    async def _is_reachable(self, timeout_s: float) -> bool:
        try:
            probe = await asyncio.wait_for(StreamClient.open_to(self._settings), timeout_s)
        except (BrokerError, TimeoutError):
            return False
        await probe.abandon()
        return True

    async def _give_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.abandon()
        self._on_loss()

    def _on_loss(self) -> None:
        """The connection is lost: everything waiting is settled as unconfirmed."""
        self._client = None
        for waiting in self._waiting:
            for batch, index in waiting.values():
                batch.settle(index, SendResult(batch.messages[index].id, self._unconfirmed()))
            waiting.clear()

    def _on_confirm(self, frame: schema.PublishConfirm) -> None:
        self._confirms += 1
        number = frame.publisher_id
        take = self._waiting[number].pop
        for publishing_id in frame.publishing_ids:
            entry = take(publishing_id, None)
            if entry is not None:
                batch, index = entry
                batch.settle(index, SendResult(batch.messages[index].id, partition=number))

    def _on_error(self, frame: schema.PublishError) -> None:
        self._confirms += 1
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
        client, self._client = self._client, None
        if client is not None:
            await client.abandon()


def _unfit(message: Message, error: Exception) -> UnfitMessage:
    return UnfitMessage(f"message {message.id!r} cannot be sent: body and key have to be bytes ({error})")
