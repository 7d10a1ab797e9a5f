"""Kafka behind the port: channels are topics, all of them logs; `config` lists the URL's options.

Durable: with one broker, topics declared here are flushed to disk before a record is confirmed; with several,
a record is confirmed when at least two of them have it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from flyball.brokers.core.broker import LogBroker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.names import check_name, is_pattern, to_regex
from flyball.brokers.kafka.admin import KafkaAdmin
from flyball.brokers.kafka.codec import to_message
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
        if self._producer is None:
            self._producer = ProducerThread(self._settings, self._admin.is_reachable)
        if producer is None:
            return KafkaSender(self._producer, channel)
        return SequencedSender(
            self._producer, channel, producer, StoredSequences(self._settings, channel, producer)
        )

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

    async def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:
        with KafkaLogReader(self._settings.url, log) as reader:
            chunks = reader.read_records(partition, start, stop)
            while (records := await asyncio.to_thread(_next_chunk, chunks)) is not None:
                yield [
                    Record(partition, each.offset(), to_message(each), each.timestamp()[1] / 1000)
                    for each in records
                ]

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
        await self._close_receivers()
        if self._producer is not None:
            await self._producer.close()
            self._producer = None
        await asyncio.to_thread(self._admin.close)


def _next_chunk(chunks: Iterator[list[Any]]) -> list[Any] | None:
    return next(chunks, None)
