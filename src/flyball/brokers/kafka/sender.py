"""A sender of the port on Kafka: messages into one topic, and repeats of a named producer dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flyball.brokers.kafka.producer import ProducerThread
from flyball.brokers.kafka.sequences import Held, stamp
from flyball.brokers.port import BrokerError, Message, SendResult, TooLarge, Unconfirmed
from flyball.errors import InvalidValue


class KafkaSender:
    """Puts messages into one topic."""

    def __init__(self, thread: ProducerThread, channel: str) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def blocked(self) -> bool:
        return self._thread.blocked

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:  # noqa: ARG002
        return await self._thread.send(self._channel, messages) if messages else []

    async def last_sequence(self) -> int | None:
        return None

    async def close(self) -> None:
        """Nothing of its own is open."""


class NumberingSender(KafkaSender):
    """Of a named producer. What the topic holds of it is looked up before the first message, and again when it is
    unknown what became of one."""

    def __init__(self, thread: ProducerThread, channel: str, producer: str, held: Held) -> None:
        super().__init__(thread, channel)
        self._producer, self._held = producer, held
        self._deciding = asyncio.Lock()
        self._on_the_way: set[asyncio.Future[list[SendResult]]] = set()
        self._through = -1
        """every message up to this number has been confirmed here"""
        self._there: set[int] | None = None
        """numbers above it that the topic holds; None: unknown"""

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        if sequence is None or not messages:
            return await super().send_batch(messages)
        async with self._deciding:  # batches leave in the order of the calls
            try:
                there = await self._known(sequence)
            except BrokerError as error:
                unknown = Unconfirmed(f"{error}: send it again with the same id")
                return [SendResult(message.id, unknown) for message in messages]
            numbers = range(sequence, sequence + len(messages))
            fresh = [at for at, number in enumerate(numbers) if number > self._through and number not in there]
            sending = asyncio.ensure_future(
                self._thread.send(
                    self._channel,
                    [messages[at] for at in fresh],
                    [stamp(self._producer, numbers[at]) for at in fresh],
                )
                if fresh
                else _nothing()
            )
            self._on_the_way.add(sending)
            sending.add_done_callback(self._on_the_way.discard)
        results = [SendResult(message.id, duplicate=True) for message in messages]
        try:
            sent = await asyncio.shield(sending)
        except BaseException:
            self._there = None
            raise
        for at, result in zip(fresh, sent, strict=True):
            results[at] = result
        if any(result.error and not isinstance(result.error, TooLarge | InvalidValue) for result in results):
            self._there = None
        elif self._there is there:  # nothing became doubtful meanwhile
            self._through = max(self._through, numbers[-1])
        return results

    async def last_sequence(self) -> int | None:
        async with self._deciding:
            if self._there is None:
                await self._all_arrived()
                last = await asyncio.to_thread(self._held.last)
                if last is None:
                    self._there, self._through = set(), -1
                return last
            last = max(self._through, *self._there, -1)
            return None if last < 0 else last

    async def _known(self, sequence: int) -> set[int]:
        if self._there is None:
            await self._all_arrived()
            self._there = await asyncio.to_thread(self._held.since, sequence)
            self._through = -1
        return self._there

    async def _all_arrived(self) -> None:
        """Nothing of ours can still come to the topic."""
        if self._on_the_way:
            await asyncio.wait(self._on_the_way)


async def _nothing() -> list[SendResult]:
    return []
