"""RabbitMQ streams behind the port: every channel is a log; `connection` lists the URL's options."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence

from flyball.brokers.core.broker import LogBroker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.names import check_name, is_pattern, to_regex
from flyball.brokers.core.positions import Partition
from flyball.brokers.port import Capabilities, ChannelInfo, Record, Start, Unsupported
from flyball.brokers.rabbitmq_stream.admin import StreamAdmin
from flyball.brokers.rabbitmq_stream.chunks import read_chunks
from flyball.brokers.rabbitmq_stream.codec import decode
from flyball.brokers.rabbitmq_stream.connection import StreamClient, StreamSettings
from flyball.brokers.rabbitmq_stream.receiver import StreamReceiver
from flyball.brokers.rabbitmq_stream.sender import StreamSender
from flyball.brokers.url import BrokerUrl


async def connect(url: BrokerUrl) -> StreamBroker:
    settings = StreamSettings.of(url)
    return StreamBroker(settings, await StreamClient.open_to(settings))


class StreamBroker(LogBroker[StreamReceiver]):
    """A connection to one RabbitMQ server's streams."""

    _subject = "rabbitmq-stream:// has"

    def __init__(self, settings: StreamSettings, client: StreamClient) -> None:
        super().__init__()
        self._settings = settings
        self._admin = StreamAdmin(settings, client)
        self._max_body_bytes = client.max_body_bytes
        self._senders: list[StreamSender] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            queues=False,
            logs=True,
            durable=False,  # kill -9 yes, power loss no: RabbitMQ does not sync streams
            dedup=True,
            shared_between_processes=True,
            max_body_bytes=self._max_body_bytes,
        )

    async def sender(self, channel: str, *, producer: str | None = None) -> StreamSender:
        partitions = await self._admin.partitions(check_name(channel))
        sender = StreamSender(self._settings, channel, partitions, producer)
        await sender.open()
        self._senders = [*(each for each in self._senders if not each.closed), sender]
        return sender

    async def subscribe(
        self, pattern: str, group: str, *, window: int = 100, start: Start = "latest"
    ) -> StreamReceiver:
        check_name(group)
        find_logs = None
        if is_pattern(pattern):
            wanted = re.compile(to_regex(pattern))

            async def find_logs() -> Mapping[str, int]:
                counts = await self._admin.logs()
                return {log: count for log, count in counts.items() if wanted.fullmatch(log)}

            logs = await find_logs()
        else:
            logs = {pattern: await self._admin.partitions(check_name(pattern))}
        starts: dict[Partition, int] = {}
        if start == "latest":
            for log in logs:
                starts |= {partition: end for partition, (_, end) in (await self._admin.all_bounds(log)).items()}
        receiver = StreamReceiver(self._settings, group, window, find_logs)
        try:
            await receiver.join(logs, starts)
        except BaseException:
            await receiver.close()  # else its membership would keep partitions from the others
            raise
        return self._register_receiver(receiver)

    async def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:
        first, end = await self._admin.bounds(log, partition)
        async for chunk in read_chunks(self._settings, log, partition, max(start, first), min(stop, end)):
            records = []
            for offset, raw in enumerate(chunk.entries, chunk.first):
                message, unreadable = decode(raw, log, offset)
                records.append(Record(partition, offset, message, chunk.stored_time_s, unreadable))
            yield records

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:
        return await self._admin.bounds(log, partition)

    async def _declare(self, spec: ChannelSpec) -> None:
        if not spec.durable:
            raise Unsupported(f"a stream is always durable (asked otherwise for {spec.name!r})")
        await self._admin.declare(spec)

    async def delete(self, channel: str) -> None:
        await self._admin.delete(check_name(channel))

    async def purge(self, channel: str) -> int | None:
        raise Unsupported(f"a stream cannot be emptied (asked for {channel!r}): delete it, or give it a retention")

    async def depth(self, channel: str, group: str | None = None) -> int:
        return await self._admin.depth(channel, group)

    async def oldest_age_s(self, channel: str) -> float | None:
        now_s = time.time()
        stored_s: list[float] = []
        for (log, number), (first, end) in (await self._admin.all_bounds(channel)).items():
            async for chunk in read_chunks(self._settings, log, number, first, min(first + 1, end)):
                stored_s.append(chunk.stored_time_s)
        return max(now_s - min(stored_s), 0.0) if stored_s else None

    async def channels(self) -> list[ChannelInfo]:
        return await self._admin.channels()

    async def close(self) -> None:
        await self._close_receivers()
        await asyncio.gather(*(sender.close() for sender in self._senders))
        await self._admin.close()
