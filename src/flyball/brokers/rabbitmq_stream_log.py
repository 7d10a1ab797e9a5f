"""Reads RabbitMQ streams by offset, synchronously and in bulk, on a private event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, Self, TypeVar

from flyball.brokers.log_reader import LogChunk
from flyball.brokers.rabbitmq_stream_admin import StreamAdmin
from flyball.brokers.rabbitmq_stream_client import StreamClient, StreamSettings
from flyball.brokers.rabbitmq_stream_codec import decode
from flyball.brokers.rabbitmq_stream_read import Chunk, read_chunks
from flyball.brokers.url import BrokerUrl

Answer = TypeVar("Answer")


async def _next(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    return await anext(chunks)


class StreamLogReader:
    """A `LogReader` of one log. Connection and loop are made on first use, and again in a forked process."""

    def __init__(self, url: BrokerUrl, log: str) -> None:
        self._url = url
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admin: StreamAdmin | None = None
        self._owner_pid = -1

    def __getstate__(self) -> tuple[BrokerUrl, str]:
        return self._url, self._log

    def __setstate__(self, state: tuple[BrokerUrl, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # the same as a new one

    def partitions(self) -> int:
        return self._run(self._opened().partitions(self._log))

    def bounds(self, partition: int) -> tuple[int, int]:
        return self._run(self._opened().bounds(self._log, partition))

    def read_bodies(self, partition: int, start: int, stop: int) -> Iterator[LogChunk]:
        first, end = self.bounds(partition)
        admin = self._opened()
        chunks = read_chunks(admin.settings, self._log, partition, max(start, first), min(stop, end))
        try:
            while True:
                try:
                    chunk = self._run(_next(chunks))
                except StopAsyncIteration:
                    return
                bodies = [
                    decode(raw, self._log, offset).body for offset, raw in enumerate(chunk.entries, chunk.first)
                ]
                yield LogChunk(chunk.first, bodies)
        finally:
            self._run(chunks.aclose())

    def _opened(self) -> StreamAdmin:
        if self._admin is None or self._owner_pid != os.getpid():
            self._owner_pid = os.getpid()
            self._loop = asyncio.new_event_loop()
            settings = StreamSettings.of(self._url)
            self._admin = StreamAdmin(settings, self._run(StreamClient.open_to(settings)))
        return self._admin

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        assert self._loop is not None
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        if self._admin is not None and self._loop is not None and self._owner_pid == os.getpid():
            self._run(self._admin.close())
            self._loop.close()
        self._admin = self._loop = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()
