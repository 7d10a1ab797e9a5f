"""Sends into one channel of a SQLite broker, and waits where a queue is full."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from itertools import repeat

from flyball.backoff import delays_s
from flyball.brokers.core.checks import queue_full, too_large
from flyball.brokers.port import BrokerError, Message, SendResult
from flyball.brokers.sqlite import append as sqlite_append
from flyball.brokers.sqlite.admin import Channel
from flyball.brokers.sqlite.append import AppendResult, Chunk, chunks
from flyball.brokers.sqlite.connection import Session
from flyball.errors import InvalidValue


class SqliteSender:
    def __init__(self, session: Session, channel: Channel, producer: str | None) -> None:
        self._session, self._channel, self._producer = session, channel, producer
        # Messages without a key go round the partitions, batch by batch; senders begin at different ones.
        self._keyless = itertools.count(os.getpid())
        self._most_bytes = session.max_body_bytes
        self._waiting = 0

    @property
    def blocked(self) -> bool:
        return self._waiting > 0

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        if sequence is not None and self._producer is None and self._channel.kind == "log":
            raise InvalidValue(f"sequence {sequence} needs a producer: open the sender with producer=NAME")
        results: list[SendResult | None] = [None] * len(messages)
        good = []
        for position, message in enumerate(messages):
            if len(message.body) > self._most_bytes:
                results[position] = SendResult(message.id, too_large(message, self._most_bytes))
            else:
                good.append((position, message))
        todo = chunks(self._channel, good, next(self._keyless))
        try:
            await self._store(todo, sequence, results)
        except BrokerError as error:
            for position, message in good:
                results[position] = results[position] or SendResult(message.id, error)
        return [
            result or SendResult(message.id, duplicate=True)
            for result, message in zip(results, messages, strict=True)
        ]

    async def _store(self, todo: list[Chunk], sequence: int | None, results: list[SendResult | None]) -> None:
        deadline = time.monotonic() + self._session.blocked_timeout_s
        # Bounded: the deadline ends it, the number of attempts is only more than enough.
        for wait_s in delays_s(1 << 30, first_s=0.001, longest_s=0.02):
            if not todo:
                return
            done = await self._append(todo, sequence)
            for chunk, first in done.stored:
                for result, position in zip(self._stored(chunk, first), chunk.positions, strict=True):
                    results[position] = result
            todo = done.rest
            if not todo:
                return
            if time.monotonic() >= deadline:
                raise queue_full(self._channel.name, self._session.blocked_timeout_s)
            self._waiting += 1
            try:
                await asyncio.sleep(wait_s)
            finally:
                self._waiting -= 1

    def _stored(self, chunk: Chunk, first: int) -> list[SendResult]:
        ids = [message.id for message in chunk.messages]
        if self._channel.kind == "queue":
            return list(map(SendResult, ids))
        offsets = range(first, first + len(ids))
        return list(map(SendResult, ids, repeat(None), repeat(False), repeat(chunk.partition), offsets))

    async def _append(self, todo: Sequence[Chunk], sequence: int | None) -> AppendResult:
        name, producer, topology = self._channel.name, self._producer, self._session.topology
        done = await self._session.write(
            lambda db: sqlite_append.append(db, topology, name, todo, producer, sequence)
        )
        self._session.wake(done.outlets)
        return done

    async def last_sequence(self) -> int | None:
        if self._producer is None:
            return None
        channel, producer = self._channel, self._producer
        return await self._session.write_relaxed(lambda db: sqlite_append.last_sequence(db, channel, producer))

    async def close(self) -> None:
        return None
