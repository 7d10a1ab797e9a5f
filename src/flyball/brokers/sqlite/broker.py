"""`sqlite:///path.db`: the embedded broker. Durable, shared by processes of one machine, no server.

    durability=power      (default) what was confirmed survives kill -9 and power loss: an fsync before each answer
    durability=process    survives kill -9 only: faster on slow disks
    blocked_timeout_s=30  how long a sender waits for space in a full queue before it fails
    busy_timeout_s=10     how long to wait for other processes that write
    lease_s=10            after which the messages of a receiver whose process hangs return
    max_body_bytes=16777216

All work on the file happens in two threads, one that writes (`writer`: group commit) and one that reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from flyball.brokers.core.broker import BaseBroker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import (
    Broker,
    Capabilities,
    ChannelInfo,
    Receiver,
    Record,
    Sender,
    Start,
    Unreachable,
)
from flyball.brokers.sqlite import append as sqlite_append
from flyball.brokers.sqlite import claims as sqlite_claims
from flyball.brokers.sqlite.connection import Session
from flyball.brokers.sqlite.log_reader import SqliteLogReader
from flyball.brokers.sqlite.receiver import SqliteReceiver
from flyball.brokers.sqlite.schema import OPTIONS, path_of
from flyball.brokers.sqlite.sender import SqliteSender
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue


async def connect(url: BrokerUrl) -> Broker:
    url.check_options(*OPTIONS)
    durability = url.options.get("durability", "power")
    if durability not in ("power", "process"):
        raise InvalidValue(f"option durability of {url} must be power or process, got {durability!r}")
    return SqliteBroker(url, await Session.open(url))


def check_exists(url: BrokerUrl) -> None:
    if not path_of(url).exists():
        raise Unreachable(f"there is no broker file {path_of(url)}: check the path, or publish something first")


class SqliteBroker(BaseBroker[SqliteReceiver]):
    def __init__(self, url: BrokerUrl, session: Session) -> None:
        super().__init__()
        self._url, self._session = url, session
        self._logs: dict[str, SqliteLogReader] = {}
        self.capabilities = Capabilities(
            queues=True,
            logs=True,
            durable=url.options.get("durability") != "process",
            dedup=True,
            shared_between_processes=True,
            max_body_bytes=session.max_body_bytes,
        )

    @property
    def commits(self) -> int:
        """Transactions of this connection so far: with many senders at once, fewer than calls."""
        return self._session.writer.commits

    async def sender(self, channel: str, *, producer: str | None = None) -> Sender:
        details = await self._session.read(lambda db: self._session.read_topology.channel(db, channel))
        return SqliteSender(self._session, details, producer)

    async def receiver(self, queue: str, *, window: int = 100) -> Receiver:
        topology = self._session.topology
        return await self._open(lambda db, _: topology.queue_outlet(db, queue), window)

    async def subscribe(self, pattern: str, group: str, *, window: int = 100, start: Start = "latest") -> Receiver:
        topology = self._session.topology
        # A group that was deleted with its log misses nothing of the log that has its name now.
        return await self._open(
            lambda db, again: topology.group_outlet(db, pattern, group, "earliest" if again else start), window
        )

    async def _open(self, find_outlet: Callable[[sqlite3.Connection, bool], int], window: int) -> Receiver:
        receiver = SqliteReceiver(self._session, find_outlet, window)
        await receiver.register()
        return self._register_receiver(receiver)

    async def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:
        records: Iterator[Sequence[Record]] = self._log(log).read_records(partition, start, stop)
        while (chunk := await self._session.run_in_read_thread(lambda: next(records, None))) is not None:
            yield chunk

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:
        return await self._session.run_in_read_thread(lambda: self._log(log).bounds(partition))

    def _log(self, log: str) -> SqliteLogReader:
        """One open reader for each log, used in the reading thread only."""
        if log not in self._logs:
            self._logs[log] = SqliteLogReader(self._url, log)
        return self._logs[log]

    async def _declare(self, spec: ChannelSpec) -> None:
        await self._session.write(lambda db: self._session.topology.declare(db, spec))

    async def delete(self, channel: str) -> None:
        topology = self._session.topology

        def job(db: sqlite3.Connection) -> None:
            for outlet in topology.outlets_on(db, channel):
                for receiver in sqlite_claims.expired_receivers(db, outlet):
                    sqlite_claims.remove_receiver(db, receiver)
            topology.delete(db, channel)

        await self._session.write(job)

    async def purge(self, channel: str) -> int | None:
        topology = self._session.topology

        def job(db: sqlite3.Connection) -> int:
            details = topology.channel(db, channel)
            if details.kind == "log":
                return sqlite_append.trim(db, topology, details, everything=True)
            return sqlite_claims.purge(db, topology.queue_outlet(db, channel))

        return await self._session.write(job)

    async def depth(self, channel: str, group: str | None = None) -> int:
        return await self._session.read(lambda db: self._session.read_topology.depth(db, channel, group))

    async def oldest_age_s(self, channel: str) -> float | None:
        return await self._session.read(lambda db: self._session.read_topology.oldest_age_s(db, channel))

    async def channels(self) -> list[ChannelInfo]:
        return await self._session.read(self._session.read_topology.list)

    async def close(self) -> None:
        try:
            await self._close_receivers()
            for reader in self._logs.values():
                await self._session.run_in_read_thread(reader.close)
        finally:
            await self._session.close()
