"""Sends into one channel of a SQLite broker, and waits where a queue is full."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from itertools import repeat

from flyball.backoff import delays_s
from flyball.brokers.core.checks import after_gap, check_batch, queue_full, too_large
from flyball.brokers.port import BrokerError, Message, SendResult
from flyball.brokers.sqlite import append as sqlite_append
from flyball.brokers.sqlite.admin import Channel
from flyball.brokers.sqlite.append import AppendResult, ChannelReplaced, Chunk, SequenceGap, chunks
from flyball.brokers.sqlite.connection import Session
from flyball.errors import InvalidValue


class SqliteSender:
    def __init__(self, session: Session, channel: Channel, producer: str | None) -> None:
        self._session, self._channel, self._producer = session, channel, producer
        # Messages without a key go round the partitions, batch by batch; senders begin at different ones.
        self._keyless = itertools.count(os.getpid())
        self._most_bytes = session.max_body_bytes
        self._waiting = 0
        self._unfinished_ends: list[int] = []
        """The last sequences of calls that have not returned."""

    @property
    def blocked(self) -> bool:
        return self._waiting > 0

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        if sequence is not None and self._producer is None and self._channel.kind == "log":
            raise InvalidValue(f"sequence {sequence} needs a producer: open the sender with producer=NAME")
        messages, unfit = check_batch(messages)
        results: list[SendResult | None] = [None] * len(messages)
        good = []
        for position, message in enumerate(messages):
            if position in unfit:
                results[position] = SendResult(message.id, unfit[position])
            elif len(message.body) > self._most_bytes:
                results[position] = SendResult(message.id, too_large(message, self._most_bytes))
            else:
                good.append((position, message))
        try:
            if sequence is None or not good:
                await self._store(good, sequence, None, results)
            else:
                await self._store_numbered(good, sequence, results)
        except BrokerError as error:
            for position, message in good:
                results[position] = results[position] or SendResult(message.id, error)
        return [
            result or SendResult(message.id, duplicate=True)
            for result, message in zip(results, messages, strict=True)
        ]

    async def _store_numbered(
        self, good: Sequence[tuple[int, Message]], sequence: int, results: list[SendResult | None]
    ) -> None:
        after = max(self._unfinished_ends, default=None)
        end = sequence + good[-1][0]
        self._unfinished_ends.append(end)
        try:
            await self._store(good, sequence, after, results)
        except SequenceGap:
            raise after_gap(self._producer) from None
        finally:
            self._unfinished_ends.remove(end)

    async def _store(
        self,
        good: Sequence[tuple[int, Message]],
        sequence: int | None,
        after: int | None,
        results: list[SendResult | None],
    ) -> None:
        todo = chunks(self._channel, good, next(self._keyless))
        deadline = time.monotonic() + self._session.blocked_timeout_s
        # Bounded: the deadline ends it, the number of attempts is only more than enough.
        for wait_s in delays_s(1 << 30, first_s=0.001, longest_s=0.02):
            if not todo:
                return
            try:
                done = await self._append(todo, sequence, after)
            except ChannelReplaced as replaced:
                self._channel = replaced.channel
                rest = [(position, message) for position, message in good if results[position] is None]
                todo = chunks(self._channel, rest, next(self._keyless))
                continue
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

    async def _append(self, todo: Sequence[Chunk], sequence: int | None, after: int | None) -> AppendResult:
        channel, producer, topology = self._channel, self._producer, self._session.topology
        done = await self._session.write(
            lambda db: sqlite_append.append(db, topology, channel, todo, producer, sequence, after)
        )
        self._session.wake(done.outlets)
        return done

    async def last_sequence(self) -> int | None:
        if self._producer is None:
            return None
        name, producer, topology = self._channel.name, self._producer, self._session.topology
        return await self._session.write_relaxed(
            lambda db: sqlite_append.last_sequence(db, topology.channel(db, name), producer)
        )

    async def close(self) -> None:
        return None
