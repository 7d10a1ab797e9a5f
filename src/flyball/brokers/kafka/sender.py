"""A sender of the port on Kafka: messages into one topic, and repeats of a named producer dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flyball.brokers.kafka.producer import ProducerThread
from flyball.brokers.kafka.sequences import StoredSequences, stamp
from flyball.brokers.port import BrokerError, Message, SendResult, Unconfirmed, Unreachable, is_permanent


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
        """Do nothing: the producer belongs to the broker."""


class SequencedSender(KafkaSender):
    """Sends for a named producer. What the topic has of it is looked up before the first message, and again
    after an unknown outcome, once nothing is on its way any more."""

    def __init__(
        self,
        thread: ProducerThread,
        channel: str,
        producer: str,
        stored: StoredSequences,
        confirm_timeout_s: float,
    ) -> None:
        super().__init__(thread, channel)
        self._producer, self._stored = producer, stored
        self._confirm_timeout_s = confirm_timeout_s
        self._lock = asyncio.Lock()
        self._in_flight: set[asyncio.Future[None]] = set()
        self._known_from = 0
        self._confirmed_through = -1
        """Every message from `_known_from` up to this number was confirmed here, or refused for good."""
        self._stored_numbers: set[int] | None = None
        """Numbers from `_known_from` on that the topic had; None: unknown."""

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        if sequence is None or not messages:
            return await super().send_batch(messages)
        try:
            return await self._send_numbered(messages, range(sequence, sequence + len(messages)))
        except BaseException:
            self._stored_numbers = None  # cancelled at any point: what was sent is unknown
            raise

    async def _send_numbered(self, messages: Sequence[Message], numbers: range) -> list[SendResult]:
        async with self._lock:  # batches leave in the order of the calls
            try:
                stored_numbers = await self._load_stored(numbers[0])
            except BrokerError as error:
                unknown = Unconfirmed(f"{error}: send it again with the same id")
                return [SendResult(message.id, unknown) for message in messages]
            fresh = [
                at
                for at, number in enumerate(numbers)
                if number > self._confirmed_through and number not in stored_numbers
            ]
            batch = None
            if fresh:
                batch = self._thread.submit(
                    self._channel,
                    [messages[at] for at in fresh],
                    [stamp(self._producer, numbers[at]) for at in fresh],
                )
                self._in_flight.add(batch.settled)
                batch.settled.add_done_callback(self._in_flight.discard)
        results = [SendResult(message.id, duplicate=True) for message in messages]
        if batch is not None:
            for at, result in zip(fresh, await batch.future, strict=True):
                results[at] = result
        if any(result.error and not is_permanent(result.error) for result in results):
            self._stored_numbers = None
        elif self._stored_numbers is stored_numbers:  # no outcome became unknown meanwhile
            self._confirmed_through = max(self._confirmed_through, numbers[-1])
        return results

    async def last_sequence(self) -> int | None:
        async with self._lock:
            if self._stored_numbers is None:
                await self._drain()
                last = await asyncio.to_thread(self._stored.last)
                # What is above is not stored, so sending there needs no other look.
                self._known_from = 0 if last is None else last + 1
                self._stored_numbers, self._confirmed_through = set(), self._known_from - 1
                return last
            last = max(self._confirmed_through, *self._stored_numbers, -1)
            return None if last < 0 else last

    async def _load_stored(self, sequence: int) -> set[int]:
        if self._stored_numbers is None or sequence < self._known_from:
            await self._drain()
            self._stored_numbers = await asyncio.to_thread(self._stored.since, sequence)
            self._known_from, self._confirmed_through = sequence, -1
        return self._stored_numbers

    async def _drain(self) -> None:
        """Wait until nothing of ours is on its way to the topic."""
        if self._in_flight:
            _, pending = await asyncio.wait(self._in_flight, timeout=self._confirm_timeout_s)
            if pending:
                raise Unreachable(f"earlier messages of producer {self._producer!r} are still on their way")
