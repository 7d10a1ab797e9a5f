"""Streams as a whole: declaring, deleting, counting and listing them."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import Any
from urllib.parse import quote

from pika.exceptions import AMQPError, ChannelClosed
from rstream import exceptions

from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.positions import Partition
from flyball.brokers.port import ChannelInfo, Unreachable, Unsupported
from flyball.brokers.rabbitmq_stream.chunks import bounds
from flyball.brokers.rabbitmq_stream.connection import (
    FAILURES,
    StreamClient,
    StreamSettings,
    stream_name,
    to_broker_error,
)
from flyball.brokers.rabbitmq_stream.group import open_amqp, peek_position, queue_names
from flyball.errors import InvalidValue

_SMALLEST_SEGMENT, _LARGEST_SEGMENT = 1 << 20, 500_000_000
_HTTP_S = 10.0


class StreamAdmin:
    """One connection for questions; it is opened again when it broke."""

    def __init__(self, settings: StreamSettings, client: StreamClient) -> None:
        self.settings = settings
        self._client = client
        self._opening = asyncio.Lock()

    async def client(self) -> StreamClient:
        async with self._opening:
            if not self._client.is_connection_alive():
                self._client = await StreamClient.open_to(self.settings)
            return self._client

    async def partitions(self, log: str) -> int:
        return await (await self.client()).require_partitions(log)

    async def declare(self, spec: ChannelSpec) -> None:
        log, partitions = spec.name, spec.partitions
        client = await self.client()
        existing = await client.partitions(log)
        if existing:
            if existing < partitions:
                raise InvalidValue(
                    f"log {log!r} has {existing} partitions, not {partitions}: delete it first, or "
                    "choose another name"
                )
            return
        arguments: dict[str, Any] = {}
        if spec.max_bytes is not None:
            share = max(spec.max_bytes // partitions, 1)
            # Only whole segments are dropped, so a stream needs several to stay near its limit.
            segment = min(max(share // 4, _SMALLEST_SEGMENT), _LARGEST_SEGMENT)
            arguments |= {"max-length-bytes": share, "stream-max-segment-size-bytes": segment}
        if spec.retention_s is not None:
            arguments["max-age"] = f"{max(int(spec.retention_s), 1)}s"
        for number in reversed(range(partitions)):  # number 0 last: once it is there, all are
            with suppress(exceptions.StreamAlreadyExists):
                try:
                    await client.create_stream(stream_name(log, number), arguments)
                except FAILURES as error:
                    if isinstance(error, exceptions.StreamAlreadyExists):
                        raise
                    raise to_broker_error(error, self.settings, log) from None

    async def delete(self, log: str) -> None:
        client = await self.client()
        for number in range(await client.partitions(log)):
            with suppress(exceptions.StreamDoesNotExist):
                try:
                    await client.delete_stream(stream_name(log, number))
                except FAILURES as error:
                    if isinstance(error, exceptions.StreamDoesNotExist):
                        raise
                    raise to_broker_error(error, self.settings, log) from None
        await asyncio.to_thread(self._delete_groups, log)

    def _delete_groups(self, log: str) -> None:
        """Delete the groups: a log declared again under this name must not find their positions."""
        if self.settings.management_port is None:
            return
        names = [name for name, kind in self._queues() if kind != "stream" and _is_group_queue(name, log)]
        connection = open_amqp(self.settings)
        with suppress(AMQPError):
            channel = connection.channel()
            for name in names:
                channel.queue_delete(name)
        with suppress(AMQPError):
            connection.close()

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:
        count = await self.partitions(log)
        if not 0 <= partition < count:
            raise InvalidValue(f"log {log!r} has partitions 0 to {count - 1}, not {partition}")
        (messages,) = await asyncio.to_thread(self._message_counts, [stream_name(log, partition)])
        return await bounds(self.settings, log, partition, messages)

    async def all_bounds(self, log: str) -> dict[Partition, tuple[int, int]]:
        count = await self.partitions(log)
        counts = await asyncio.to_thread(
            self._message_counts, [stream_name(log, number) for number in range(count)]
        )
        return {(log, number): await bounds(self.settings, log, number, counts[number]) for number in range(count)}

    def _message_counts(self, streams: list[str]) -> list[int | None]:
        """The message count of each queue over AMQP; None: unknown, because it does not answer."""
        try:
            connection = open_amqp(self.settings)
        except Unreachable:
            return [None] * len(streams)
        try:
            channel = connection.channel()
            return [int(channel.queue_declare(name, passive=True).method.message_count) for name in streams]
        except AMQPError:
            return [None] * len(streams)
        finally:
            with suppress(AMQPError):
                connection.close()

    async def depth(self, log: str, group: str | None) -> int:
        spans = await self.all_bounds(log)
        done = {} if group is None else await asyncio.to_thread(self._positions, group, list(spans))
        return sum(
            max(end - max(done.get(partition, first), first), 0) for partition, (first, end) in spans.items()
        )

    def _positions(self, group: str, partitions: list[Partition]) -> dict[Partition, int]:
        connection = open_amqp(self.settings)
        positions: dict[Partition, int] = {}
        try:
            for partition in partitions:
                channel = connection.channel()
                with suppress(ChannelClosed):  # no such queue: the group does not know this partition
                    channel.queue_declare(queue_names(group, partition)[1], passive=True)
                    position = peek_position(channel, group, partition, attempts=10)
                    if position is not None:
                        positions[partition] = position
        finally:
            connection.close()
        return positions

    async def channels(self) -> list[ChannelInfo]:
        logs = await self.logs()
        return [
            ChannelInfo(log, "log", partitions, await self.depth(log, None))
            for log, partitions in sorted(logs.items())
        ]

    async def logs(self) -> dict[str, int]:
        """All logs and their partitions, by their streams' names."""
        return count_partitions(name for name, kind in await asyncio.to_thread(self._queues) if kind == "stream")

    def _queues(self) -> list[tuple[str, str]]:
        """(name, type) of every queue, from the management API: neither protocol can list."""
        settings = self.settings
        if settings.management_port is None:
            raise Unsupported(
                f"listing and wildcards need RabbitMQ's management API: add management=PORT to {settings.url}"
            )
        scheme = "http" if settings.tls is None else "https"
        address = (
            f"{scheme}://{settings.host}:{settings.management_port}/api/queues/{quote(settings.vhost, safe='')}"
        )
        login = f"{settings.url.user or 'guest'}:{settings.url.password or 'guest'}".encode()
        request = urllib.request.Request(
            f"{address}?columns=name,type", headers={"Authorization": f"Basic {base64.b64encode(login).decode()}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_HTTP_S, context=settings.tls) as answer:
                return [(each["name"], each.get("type", "classic")) for each in json.load(answer)]
        except (urllib.error.URLError, OSError) as error:
            raise Unreachable(f"the management API of {settings.url} does not answer ({error})") from None

    async def close(self) -> None:
        await self._client.abandon()


def count_partitions(streams: Iterable[str]) -> dict[str, int]:
    """The logs among streams, with their partitions; those of other programs may have numbers in their names, too.

    >>> count_partitions(["orders-1", "orders-0", "orders-7", "sensor-77", "audit"])
    {'orders': 2}
    """
    names = set(streams)
    logs = (name.removesuffix("-0") for name in sorted(names) if name.endswith("-0"))
    return {log: next(number for number in count() if stream_name(log, number) not in names) for log in logs}


def _is_group_queue(queue: str, log: str) -> bool:
    """A group's queue of this log (see `group`)."""
    if not queue.startswith(("flyball.lock.", "flyball.position.", "flyball.members.", "flyball.hungry.")):
        return False
    stem, dash, number = queue.rpartition("-")
    return queue.endswith(f".{log}") or (bool(dash) and number.isdecimal() and stem.endswith(f".{log}"))
