"""Reads RabbitMQ streams by offset, synchronously and in bulk, on an event loop in a thread of its own.

A thread, because the caller may be inside a running event loop, where another one cannot be run, and there may be
several calling threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, Self, TypeVar

from flyball.brokers.log_reader import LogChunk
from flyball.brokers.rabbitmq_stream.admin import StreamAdmin
from flyball.brokers.rabbitmq_stream.chunks import Chunk, read_chunks
from flyball.brokers.rabbitmq_stream.codec import decode
from flyball.brokers.rabbitmq_stream.connection import StreamClient, StreamSettings
from flyball.brokers.url import BrokerUrl
from flyball.loop_thread import LoopThread

Answer = TypeVar("Answer")


async def _next(chunks: AsyncGenerator[Chunk, None]) -> Chunk | None:
    return await anext(chunks, None)


async def _end(admin: StreamAdmin | None) -> None:
    """Disconnect, and cancel the requests of a caller that was interrupted."""
    if admin is not None:
        await admin.close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class StreamLogReader:
    """A `LogReader` of one log. Connection and thread are made on first use, and again in a forked process."""

    def __init__(self, url: BrokerUrl, log: str) -> None:
        self._url = url
        self._log = log
        self._loop: LoopThread | None = None
        self._admin: StreamAdmin | None = None
        self._owner_pid = -1
        self._opening = threading.Lock()

    def __getstate__(self) -> tuple[BrokerUrl, str]:
        return self._url, self._log

    def __setstate__(self, state: tuple[BrokerUrl, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # the same as a new one

    def partitions(self) -> int:
        return self._run(self._open_admin().partitions(self._log))

    def bounds(self, partition: int) -> tuple[int, int]:
        return self._run(self._open_admin().bounds(self._log, partition))

    def read_bodies(self, partition: int, start: int, stop: int) -> Iterator[LogChunk]:
        first, end = self.bounds(partition)
        admin = self._open_admin()
        chunks = read_chunks(admin.settings, self._log, partition, max(start, first), min(stop, end))
        try:
            while (chunk := self._run(_next(chunks))) is not None:
                bodies = [
                    decode(raw, self._log, offset)[0].body for offset, raw in enumerate(chunk.entries, chunk.first)
                ]
                yield LogChunk(chunk.first, bodies)
        finally:
            if self._loop is not None:  # else the reader was closed before the end
                self._run(chunks.aclose())

    def _open_admin(self) -> StreamAdmin:
        if self._owner_pid != os.getpid():  # the lock may have been locked when this process was forked
            self._opening = threading.Lock()
            self._admin, self._loop, self._owner_pid = None, None, os.getpid()
        with self._opening:
            if self._admin is None:
                settings = StreamSettings.of(self._url)
                self._admin = StreamAdmin(settings, self._run(StreamClient.open_to(settings)))
            return self._admin

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        if self._loop is None:
            self._loop = LoopThread("flyball-streams")
        return self._loop.run(work)

    def close(self) -> None:
        if self._owner_pid == os.getpid() and self._loop is not None:
            self._run(_end(self._admin))
            self._loop.stop()
        self._admin = self._loop = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()
