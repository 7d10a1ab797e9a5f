"""One open SQLite broker file: its two threads, what they share, and the receivers to wake."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from flyball.brokers.sqlite import append as sqlite_append
from flyball.brokers.sqlite import claims as sqlite_claims
from flyball.brokers.sqlite.admin import Topology
from flyball.brokers.sqlite.schema import open_file, path_of, to_broker_error
from flyball.brokers.sqlite.writer import Writer
from flyball.brokers.url import BrokerUrl

Result = TypeVar("Result")


class Session:
    """Open it with `Session.open(url)`."""

    @classmethod
    async def open(cls, url: BrokerUrl) -> Session:
        path, busy_timeout_s = path_of(url), url.number("busy_timeout_s", 10.0)
        opened = await asyncio.to_thread(lambda: open_file(path, create=True, busy_timeout_s=busy_timeout_s))
        return cls(url, path, opened, busy_timeout_s)

    def __init__(self, url: BrokerUrl, path: Path, opened: sqlite3.Connection, busy_timeout_s: float) -> None:
        self.lease_s = url.number("lease_s", 10.0)
        self.blocked_timeout_s = url.number("blocked_timeout_s", 30.0)
        self.max_body_bytes = url.integer("max_body_bytes", 16 << 20)
        self.topology = Topology()  # belongs to the writing thread
        self.read_topology = Topology()  # the same, for the reading thread
        self.wakes: dict[int, tuple[int, Callable[[], None]]] = {}  # receiver → (its outlet, how to wake it)
        self._read_thread = _ReadThread(path, busy_timeout_s)
        self.writer = Writer(
            path,
            opened,
            busy_timeout_s=busy_timeout_s,
            power_safe=url.options.get("durability") != "process",
            maintenance=self._maintain,
            maintenance_s=min(self.lease_s / 3, 1.0),
        )

    def _maintain(self, db: sqlite3.Connection) -> None:
        sqlite_claims.renew(db, list(self.wakes), self.lease_s)
        for channel in self.topology.channels(db):
            if channel.retention_s is not None:
                sqlite_append.trim(db, self.topology, channel)

    async def write(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a job in a transaction that is on the disk when this returns."""
        return await self.writer.do(job, durable=True)

    async def write_relaxed(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a job in a transaction that a power failure may undo: claims and acknowledgements.

        Then messages are delivered again. A durable transaction also writes all before it.
        """
        return await self.writer.do(job, durable=False)

    async def read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a query without waiting for writers."""
        return await self._read_thread.do(query)

    async def run_in_read_thread(self, work: Callable[[], Result]) -> Result:
        """Run something slow in the reading thread."""
        return await self._read_thread.call(work)

    def wake(self, outlets: Collection[int]) -> None:
        for outlet, notify in list(self.wakes.values()):
            if outlet in outlets:
                notify()

    async def close(self) -> None:
        await self.writer.close()
        await self._read_thread.close()


class _ReadThread:
    """The thread that reads."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self._path, self._busy_timeout_s = path, busy_timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flyball-sqlite-read")
        self._connection: sqlite3.Connection | None = None

    async def call(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def do(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        def work() -> Result:
            if self._connection is None:
                self._connection = open_file(self._path, create=False, busy_timeout_s=self._busy_timeout_s)
            try:
                return query(self._connection)
            except sqlite3.Error as error:
                raise to_broker_error(error, self._path) from error

        return await self.call(work)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self.call(connection.close)
        self._thread.shutdown(wait=False)
