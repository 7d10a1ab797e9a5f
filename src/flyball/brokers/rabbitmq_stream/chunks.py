"""Reading RabbitMQ streams by offset: chunks as the server keeps them, with every entry's offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from rstream import schema
from rstream.constants import OffsetType

from flyball.brokers.port import Unreachable
from flyball.brokers.rabbitmq_stream.codec import UnreadableEntry
from flyball.brokers.rabbitmq_stream.connection import (
    FAILURES,
    StreamClient,
    StreamSettings,
    offset_spec,
    stream_name,
    to_broker_error,
)
from flyball.futures import wait_at_most

_CHUNK_TIMEOUT_S = 15.0
_EMPTY_S = 0.5
_CREDIT = 4


@dataclass(slots=True)
class Chunk:
    """Entries with consecutive offsets from `first`."""

    first: int
    entries: list[bytes]
    stored_time_s: float

    @property
    def end(self) -> int:
        return self.first + len(self.entries)


ChunkMark = tuple[int, int]
"""First offset and time of a chunk: streams of the same name that exist one after the other share none."""


def is_other_stream(at: int, last: ChunkMark | None, first: int, end: int, time_ms: int) -> bool:
    """Whether a chunk [first, end), sent by the server for the offset before `at`, is of another stream.

    That is one that was declared again under the same name. `last` is the chunk in which reading ended, if known.
    A stream that still has its offset `at - 1` sends the chunk that contains it; a later one means that what was
    before is past its retention.

    >>> is_other_stream(30, (20, 1000), 20, 30, 1000), is_other_stream(30, (20, 1000), 40, 50, 2000)
    (False, False)
    >>> is_other_stream(30, (20, 1000), 0, 40, 3000), is_other_stream(30, None, 0, 5, 3000)
    (True, True)
    """
    if first >= at:
        return False
    return end < at or (last is not None and last != (first, time_ms))


def to_chunk(frame: schema.Deliver, start: int) -> Chunk:
    """A chunk from `start` on: the server sends the whole chunk that contains the requested offset."""
    skip = max(start - frame.chunk_first_offset, 0)
    try:
        entries = frame.get_messages()
    except Exception:  # noqa: BLE001  what a decoder of compressed data raises can be anything
        entries = _readable_entries(frame)
    return Chunk(frame.chunk_first_offset + skip, entries[skip:] if skip else entries, frame.timestamp / 1000)


def _readable_entries(frame: schema.Deliver) -> list[bytes]:
    """The entries of a chunk in which some producer put entries together in a way that cannot be undone here."""
    data, at = frame.data, 0
    entries: list[bytes] = []
    while len(entries) < frame.num_records and at < len(data):
        kind = data[at]
        if not kind & 0x80:
            end = at + 4 + int.from_bytes(data[at : at + 4])
            entries.append(data[at + 4 : end])
            at = end
            continue
        count = int.from_bytes(data[at + 1 : at + 3])
        start = at + 11
        end = start + int.from_bytes(data[at + 7 : start])
        try:
            entries += schema.SubEntryChunk.read(data, kind, at + 1)[0]
        except Exception as error:  # noqa: BLE001  as above
            reason = f"{count} messages are compressed and cannot be read ({type(error).__name__}: {error})"
            # The first one holds all there is: copies for each of them would be many times as large.
            entries += [UnreadableEntry(data[start:end], reason), *[UnreadableEntry(b"", reason)] * (count - 1)]
        at = end
    missing = frame.num_records - len(entries)
    entries += [UnreadableEntry(b"", "the chunk that contains it ends before it")] * missing
    return entries[: frame.num_records]


class ChunkReader:
    """One subscription on a connection of its own."""

    def __init__(self, client: StreamClient, frames: asyncio.Queue[schema.Deliver | None]) -> None:
        self._client = client
        self._frames = frames

    @classmethod
    async def begin(
        cls, settings: StreamSettings, log: str, partition: int, spec: schema.OffsetSpec
    ) -> ChunkReader:
        frames: asyncio.Queue[schema.Deliver | None] = asyncio.Queue()
        client = await StreamClient.open_to(settings, lambda _: frames.put_nowait(None))
        arrived: Callable[[schema.Deliver], None] = frames.put_nowait
        client.add_handler(schema.Deliver, arrived, name="0")
        await client.run_queue_listener_task(0, arrived)
        try:
            await client.subscribe(stream_name(log, partition), 0, spec, _CREDIT)
        except FAILURES as error:
            await client.abandon()
            raise to_broker_error(error, settings, log) from None
        return cls(client, frames)

    async def next(self, timeout_s: float) -> schema.Deliver | None:
        """The next chunk; None: none came in time."""
        try:
            frame = await wait_at_most(self._frames.get(), timeout_s)
        except TimeoutError:
            return None
        if frame is None:
            raise Unreachable(f"the connection to {self._client.settings.url} was lost while reading")
        await self._client.credit(0, 1)
        return frame

    async def end(self) -> None:
        await self._client.abandon()


async def bounds(settings: StreamSettings, log: str, partition: int, message_count: int | None) -> tuple[int, int]:
    """(first offset still there, offset the next record will get).

    The server reports neither: they are read off the first and the last chunk. What AMQP says about the queue,
    `message_count`, does not give the end, and is 0 for no record as well as for one; but any other number
    means that a chunk will come, however long it takes.
    """
    frames: list[schema.Deliver] = []
    for kind in (OffsetType.FIRST, OffsetType.LAST):
        reader = await ChunkReader.begin(settings, log, partition, offset_spec(kind))
        frame = await reader.next(_CHUNK_TIMEOUT_S if message_count else _EMPTY_S)
        await reader.end()
        if frame is None:
            return 0, 0
        frames.append(frame)
    return frames[0].chunk_first_offset, frames[1].chunk_first_offset + frames[1].num_records


async def read_chunks(
    settings: StreamSettings, log: str, partition: int, start: int, stop: int
) -> AsyncGenerator[Chunk, None]:
    """Chunks of the records with start <= offset < stop; `stop` has to be within the log's bounds."""
    if start >= stop:
        return
    reader = await ChunkReader.begin(settings, log, partition, offset_spec(OffsetType.OFFSET, start))
    try:
        at = start
        while at < stop:
            frame = await reader.next(_CHUNK_TIMEOUT_S)
            if frame is None:
                raise Unreachable(f"{settings.url} sent nothing of log {log!r} for {_CHUNK_TIMEOUT_S:.0f} s")
            chunk = to_chunk(frame, start)
            at = chunk.end
            if at > stop:
                del chunk.entries[stop - chunk.first :]
            if chunk.entries:
                yield chunk
    finally:
        await reader.end()
