"""Kafka behind the port: channels are topics, all of them logs; `config` lists the URL's options.

Durable: with one broker, topics declared here are flushed to disk before a record is confirmed; with several,
a record is confirmed when at least two of them have it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from flyball.brokers.core.broker import LogBroker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.names import check_name, is_pattern, to_regex
from flyball.brokers.core.positions import Partition
from flyball.brokers.kafka.admin import KafkaAdmin
from flyball.brokers.kafka.assigned_receiver import AssignedReceiver
from flyball.brokers.kafka.codec import to_record
from flyball.brokers.kafka.config import KafkaSettings
from flyball.brokers.kafka.log_reader import KafkaLogReader
from flyball.brokers.kafka.producer import ProducerThread
from flyball.brokers.kafka.receiver import KafkaReceiver
from flyball.brokers.kafka.sender import KafkaSender, SequencedSender
from flyball.brokers.kafka.sequences import StoredSequences
from flyball.brokers.port import Capabilities, ChannelInfo, Record, Start
from flyball.brokers.url import BrokerUrl


async def connect(url: BrokerUrl) -> KafkaBroker:
    settings = KafkaSettings.of(url)
    admin = KafkaAdmin(settings)
    await asyncio.to_thread(admin.check_connection)
    return KafkaBroker(settings, admin)


class KafkaBroker(LogBroker[KafkaReceiver]):
    """A connection to a Kafka cluster."""

    _subject = "Kafka has"

    def __init__(self, settings: KafkaSettings, admin: KafkaAdmin) -> None:
        super().__init__()
        self._settings = settings
        self._admin = admin
        self._producer: ProducerThread | None = None
        self._exact_producer: ProducerThread | None = None
        """Of named producers."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            queues=False,
            logs=True,
            durable=True,
            dedup=True,
            shared_between_processes=True,
            max_body_bytes=self._settings.max_body_bytes,
        )

    async def sender(self, channel: str, *, producer: str | None = None) -> KafkaSender:
        await asyncio.to_thread(self._admin.partitions, check_name(channel))
        if producer is None:
            if self._producer is None:
                self._producer = ProducerThread(self._settings, self._admin.is_reachable)
            return KafkaSender(self._producer, channel)
        if self._exact_producer is None:
            self._exact_producer = ProducerThread(self._settings, self._admin.is_reachable, exact=True)
        stored = StoredSequences(self._settings, channel, producer)
        return SequencedSender(self._exact_producer, channel, producer, stored, self._settings.confirm_timeout_s)

    async def subscribe(
        self, pattern: str, group: str, *, window: int = 100, start: Start = "latest"
    ) -> KafkaReceiver:
        check_name(group)
        find_topics: Callable[[], Sequence[str]] | None = None
        if is_pattern(pattern):
            wanted = re.compile(to_regex(pattern))

            def find_topics() -> Sequence[str]:
                return [name for name in self._admin.topics() if wanted.fullmatch(name)]

            topics = await asyncio.to_thread(find_topics)
        else:
            await asyncio.to_thread(self._admin.partitions, check_name(pattern))
            topics = [pattern]
        starts = {}
        if start == "latest":
            starts = await asyncio.to_thread(self._admin.begin_group_at_end, group, topics)
        return self._register_receiver(KafkaReceiver(self._settings, group, window, topics, find_topics, starts))

    def assigned_receiver(
        self,
        group: str,
        *,
        window: int,
        store: Callable[[Mapping[Partition, int]], Awaitable[Collection[Partition]]],
        on_loss: Callable[[Partition], None],
    ) -> AssignedReceiver:
        """A receiver of partitions that are assigned to it one by one."""
        receiver = AssignedReceiver(self._settings, check_name(group), window, store, on_loss)
        self._register_receiver(receiver)
        return receiver

    async def partitions(self, log: str) -> int:
        return await asyncio.to_thread(self._admin.partitions, check_name(log))

    async def committed(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The offsets that a group has committed, where it has."""
        return await asyncio.to_thread(self._admin.committed, group, partitions)

    async def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get."""
        return await asyncio.to_thread(self._admin.ends, partitions)

    async def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:
        with KafkaLogReader(self._settings.url, log) as reader:
            chunks = reader.read_records(partition, start, stop)
            while (records := await asyncio.to_thread(_next_chunk, chunks)) is not None:
                yield list(map(to_record, records))

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:
        return (await asyncio.to_thread(self._admin.bounds, log))[partition]

    async def _declare(self, spec: ChannelSpec) -> None:
        await asyncio.to_thread(self._admin.declare, spec)

    async def delete(self, channel: str) -> None:
        await asyncio.to_thread(self._admin.delete, check_name(channel))

    async def purge(self, channel: str) -> int | None:
        return await asyncio.to_thread(self._admin.purge, channel)

    async def depth(self, channel: str, group: str | None = None) -> int:
        return await asyncio.to_thread(self._admin.depth, channel, group)

    async def oldest_age_s(self, channel: str) -> float | None:
        return await asyncio.to_thread(self._admin.oldest_age_s, channel)

    async def channels(self) -> list[ChannelInfo]:
        return await asyncio.to_thread(self._admin.channels)

    async def close(self) -> None:
        try:
            await self._close_receivers()
        finally:
            producers, self._producer, self._exact_producer = (self._producer, self._exact_producer), None, None
            await asyncio.gather(*(producer.close() for producer in producers if producer is not None))
            await asyncio.to_thread(self._admin.close)


def _next_chunk(chunks: Iterator[list[Any]]) -> list[Any] | None:
    return next(chunks, None)
