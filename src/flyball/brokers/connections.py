"""The brokers that a program is connected to: connections for each URL, shared by all channels.

A program may publish to thousands of channels, one for each customer, and every connection costs sockets, threads
and memory at both ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from flyball.brokers import Broker, Sender, connect
from flyball.brokers.port import BrokerError

_MAX_USERS = 1000
"""Of a connection: RabbitMQ permits 2047 channels in one by default."""


class Connection:
    """A broker that is being opened, or is open, and how many use it."""

    __slots__ = ("opening", "url", "users")

    def __init__(self, url: str, opening: asyncio.Task[Broker]) -> None:
        self.url = url
        self.opening = opening
        self.users = 0

    @property
    def broker(self) -> Broker:
        return self.opening.result()


class Connections:
    """Opens a broker for its first user and closes it after its last."""

    def __init__(self) -> None:
        self._connections: dict[str, list[Connection]] = {}

    async def acquire(self, url: str) -> Connection:
        """Return a connection to `url`; who gets it calls `close` once. Calls at the same time open it once."""
        present = self._connections.setdefault(url, [])
        connection = next((each for each in present if each.users < _MAX_USERS), None)
        if connection is None:
            connection = Connection(url, asyncio.get_running_loop().create_task(connect(url)))
            present.append(connection)
        connection.users += 1
        try:
            await asyncio.shield(connection.opening)
        except BaseException:
            await self._release(connection)
            raise
        return connection

    async def close(self, connection: Connection, sender: Sender | None = None) -> None:
        """End one use of a connection, and the sender that was opened for it."""
        try:
            if sender is not None:
                with suppress(BrokerError):
                    await sender.close()
        finally:
            await self._release(connection)

    async def _release(self, connection: Connection) -> None:
        connection.users -= 1
        if connection.users:
            return
        present = self._connections[connection.url]
        present.remove(connection)
        if not present:
            del self._connections[connection.url]
        opening = connection.opening
        if not opening.done():
            opening.cancel()
            await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            with suppress(BrokerError):
                await opening.result().close()
