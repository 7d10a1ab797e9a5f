"""The manager's connections to the nodes: it asks how long their queues are, and `mover` moves messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from flyball.brokers import Broker, connect
from flyball.brokers.core.checks import ChannelSpec
from flyball.errors import FlyballError

log = logging.getLogger("flyball.cluster")


class NodeConnections:
    """Connections to nodes, opened when they are needed, and again after a node did not answer in `timeout_s`."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._brokers: dict[str, Broker] = {}
        self._declared: set[tuple[str, str]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def read_lengths(
        self, urls: Mapping[str, str], channels: Iterable[ChannelSpec]
    ) -> dict[str, dict[str, int] | None]:
        """The messages that wait at each node, by channel; None: the node does not answer."""
        wanted = tuple(channels)
        lengths = await asyncio.gather(*(self._read_node(url, wanted) for url in urls.values()))
        return dict(zip(urls, lengths, strict=True))

    async def _read_node(self, url: str, channels: tuple[ChannelSpec, ...]) -> dict[str, int] | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                broker = await self.open(url, channels)
                return {channel.name: await broker.depth(channel.name) for channel in channels}
        except (FlyballError, OSError, TimeoutError) as error:
            log.debug("a node does not answer: %s", error)
            self.give_up(url)
            return None

    async def close(self) -> None:
        for url in list(self._brokers):
            self.give_up(url)
        if self._closing:
            await asyncio.wait(self._closing)

    async def open(self, url: str, channels: Iterable[ChannelSpec]) -> Broker:
        """A connection to a node that has these channels; they are declared if they are missing."""
        broker = self._brokers.get(url)
        if broker is None:
            broker = await connect(url)
            if url in self._brokers:  # opened by another call meanwhile
                self._close_later(broker)
                broker = self._brokers[url]
            self._brokers[url] = broker
        for channel in channels:
            if (url, channel.name) not in self._declared:
                await declare(broker, channel)
                self._declared.add((url, channel.name))
        return broker

    def give_up(self, url: str) -> None:
        """Open another connection the next time."""
        self._declared = {each for each in self._declared if each[0] != url}
        broker = self._brokers.pop(url, None)
        if broker is not None:
            self._close_later(broker)

    def _close_later(self, broker: Broker) -> None:
        """A node that does not answer may not answer to this either."""

        async def close() -> None:
            with suppress(FlyballError, OSError):
                await broker.close()

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def declare(broker: Broker, channel: ChannelSpec) -> None:
    await broker.declare(channel.name, channel.kind, max_bytes=channel.max_bytes, durable=channel.durable)
