"""Writes the rows of one Spark task: connects when the first row comes, sends while the next are converted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flyball.brokers import Broker, Message, connect
from flyball.brokers.port import Kind
from flyball.loop_thread import LoopThread
from flyball.message import fit_message
from flyball.pipeline.logs.writer import SinkFailed
from flyball.pipeline.policy.appending import WriteTask
from flyball.pipeline.writer.channel_writer import ChannelWriter, Refused, wait_for_broker
from flyball.pipeline.writer.options import SinkOptions
from flyball.pipeline.writer.rows import OutgoingRow, RowReader

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_ROWS, _PIECE_BYTES = 4_000, 4_000_000
ERROR, CHANNEL = "flyball-error", "flyball-channel"
"""Headers of a dead letter."""
_MAX_REASON = 1_000
_DEAD_BODY_BYTES = 64_000
"""What is stored of a body that the broker finds too large."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the rows of a task: stored now, stored by an earlier attempt, dead letters."""

    sent: int = 0
    repeated: int = 0
    refused: int = 0


class TaskWriter:
    def __init__(self, options: SinkOptions, task: WriteTask) -> None:
        self._options, self._task = options, task
        self._broker: Broker | None = None
        self._writers: dict[str, ChannelWriter] = {}
        self._refused = 0
        self._sending: asyncio.Task[None] | None = None

    async def append(self, rows: Sequence[OutgoingRow]) -> None:
        """Begin to send these rows, once those of the call before are stored."""
        await self._sent()
        self._sending = asyncio.get_running_loop().create_task(self._send(rows))

    async def finish(self) -> Counts:
        await self._sent()
        for writer in list(self._writers.values()):
            await writer.finish()
        writers = [writer for channel, writer in self._writers.items() if channel != self._options.dead_letters]
        return Counts(
            sum(writer.sent for writer in writers), sum(writer.repeated for writer in writers), self._refused
        )

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        for writer in self._writers.values():
            await writer.close()
        if self._broker is not None:
            await self._broker.close()

    async def _sent(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            await sending

    async def _send(self, rows: Sequence[OutgoingRow]) -> None:
        by_channel: dict[str, list[Message]] = {}
        for row in rows:
            if row.refusal is not None:
                await self._refuse(row.channel, [(row.message, row.refusal)])
            else:
                by_channel.setdefault(row.channel, []).append(row.message)
        for channel, messages in by_channel.items():
            writer = await self._channel_writer(channel)
            await self._refuse(channel, await writer.append(messages))

    async def _refuse(self, channel: str, refused: Refused) -> None:
        if not refused:
            return
        dead_letters = self._options.dead_letters
        if dead_letters is None:
            message, reason = refused[0]
            raise SinkFailed(
                f"a row for {channel or 'no channel'!r} cannot be stored: {reason} (id {message.id[:100]}, body "
                f"begins {message.body[:60]!r}); filter such rows out, or set on_refused = deadletter"
            )
        writer = await self._writer(dead_letters, await self._kind_beside(channel), 1)
        most_bytes = min(
            (await self._connected()).capabilities.max_body_bytes or _DEAD_BODY_BYTES, _DEAD_BODY_BYTES
        )
        again = await writer.append(
            [to_dead_letter(message, channel, reason, most_bytes) for message, reason in refused]
        )
        if again:
            raise SinkFailed(f"the dead-letter channel {dead_letters!r} refuses a row, too: {again[0][1]}")
        self._refused += len(refused)

    async def _kind_beside(self, channel: str) -> Kind:
        """The kind of a channel for dead letters: that of the channel they were for, if they were for any."""
        if channel:
            return (await self._channel_writer(channel)).kind
        if self._options.declare:
            return self._options.declare
        return "queue" if (await self._connected()).capabilities.queues else "log"

    async def _channel_writer(self, channel: str) -> ChannelWriter:
        return await self._writer(channel, self._options.declare or None, self._options.partitions)

    async def _writer(self, channel: str, declare: Kind | None, partitions: int) -> ChannelWriter:
        if channel not in self._writers:
            options = self._options
            broker = await self._connected()

            async def opened() -> ChannelWriter:
                writer = ChannelWriter(
                    broker, options.url, channel, self._task, options.outage_s, exactly_once=options.exactly_once
                )
                await writer.open(declare, partitions)
                return writer

            self._writers[channel] = await wait_for_broker(opened, options.outage_s)
        return self._writers[channel]

    async def _connected(self) -> Broker:
        if self._broker is None:
            # A missing file is one of another host: the driver has made it where it was to be made.
            self._broker = await wait_for_broker(
                lambda: connect(self._options.url, create=False), self._options.outage_s
            )
        return self._broker


def to_dead_letter(message: Message, channel: str, reason: str, most_bytes: int) -> Message:
    """The message with the reason and its channel as headers, as far as every broker can carry it.

    >>> to_dead_letter(Message(b"x", id="7"), "orders", "its value is null", most_bytes=100).headers
    {'flyball-error': 'its value is null', 'flyball-channel': 'orders'}
    """
    own = {ERROR: reason[:_MAX_REASON], CHANNEL: channel}
    body = message.body[:most_bytes]
    return fit_message(Message(body, message.id, message.key, {**own, **message.headers}, message.event_time_s))


def write_rows(options: SinkOptions, task: WriteTask, batches: Iterable[pa.RecordBatch]) -> Counts:
    """Write what a task of Spark got."""
    reader = RowReader(options.channel, task.mark)
    loop = LoopThread("flyball-sink")
    writer = TaskWriter(options, task)
    try:
        for batch in batches:
            for piece in _pieces(reader.read(batch)):
                loop.run(writer.append(piece))
        return loop.run(writer.finish())
    finally:
        loop.run(writer.close())
        loop.stop()


def _pieces(rows: Iterator[OutgoingRow]) -> Iterator[list[OutgoingRow]]:
    """Rows in lists of bounded number and size."""
    piece: list[OutgoingRow] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row.message.body)
        if len(piece) >= _PIECE_ROWS or size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
