"""A line: the connection of one client to one node, with its sender or receiver there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from flyball.brokers import Broker
from flyball.brokers.connections import Connection
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import Receiver, Sender
from flyball.cluster.client import ClusterClient
from flyball.cluster.node_connections import declare
from flyball.errors import FlyballError, InvalidValue

End = TypeVar("End", bound=Sender | Receiver)

_OPEN_S = 5.0
"""A node that does not answer for so long is not used."""


class Line(Generic[End]):
    """`is_abandoned`: its node is lost, nothing is expected from it any more. `counts`: its node is not stopped
    before it is closed."""

    def __init__(
        self, client: ClusterClient, node: str, connection: Connection, end: End, *, counts: bool = True
    ) -> None:
        self._client, self.node, self._connection, self.end = client, node, connection, end
        self.is_abandoned = False
        self._count = 1 if counts else 0
        client.note_line(node, self._count)
        self.running: set[asyncio.Task[Any]] = set()

    def abandon(self) -> None:
        self.is_abandoned = True
        for task in self.running:
            task.cancel()

    async def finish(self) -> None:
        """Wait for what is running, then close."""
        try:
            if self.running:
                await asyncio.wait(self.running)
            with suppress(FlyballError, OSError):
                await self.end.close()
        finally:
            self._client.note_line(self.node, -self._count)
            await self._client.connections.close(self._connection)


async def open_line(
    client: ClusterClient,
    node: str,
    channel: ChannelSpec,
    open_end: Callable[[Broker], Awaitable[End]],
    *,
    counts: bool = True,
) -> Line[End]:
    """Connect to a node and open its queue, which is declared if it is missing there."""
    url = client.find_url(node)
    if url is None:
        await client.refresh_record()
        url = client.find_url(node)
    if url is None:
        known = ", ".join(client.list_urls())
        raise InvalidValue(f"there is no node {node!r} in cluster {client.name!r}: it has {known}")
    async with asyncio.timeout(_OPEN_S):
        connection = await client.connections.acquire(url)
        try:
            await declare(connection.broker, channel)
            return Line(client, node, connection, await open_end(connection.broker), counts=counts)
        except BaseException:
            await client.connections.close(connection)
            raise


class BackgroundTasks:
    """Tasks that end by themselves, and are waited for at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, timeout_s: float) -> None:
        """Wait for all, and end those that take longer."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
