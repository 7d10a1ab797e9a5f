"""A process's part in a cluster: its sessions in the store, and a candidate for the manager.

Every `heartbeat_s` it reports and reads the manager's record, five times as often while one of its clients waits
for a node or moves. If it cannot reach the store, its clients go on where they are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from flyball.brokers.connections import Connections
from flyball.brokers.port import Unreachable
from flyball.cluster.cluster_store import ClusterStore, Setup, StoredRecord
from flyball.cluster.manager import FASTER, Manager
from flyball.cluster.policy.management import Client
from flyball.cluster.policy.state import Role
from flyball.cluster.records import ClusterRecord
from flyball.cluster.session import Endpoint, Session, new_client_id
from flyball.store.led_state import candidate_name
from flyball.store.protocol import Database, StoreError
from flyball.store.url import open_database
from flyball.store.worker_pool import WorkerPool

log = logging.getLogger("flyball.cluster")

Result = TypeVar("Result")

JOIN_S = 30.0
"""The longest that a client waits for its first node."""


class ClusterClient:
    """`open` before, `close` after use. `manages` False: it is no candidate for the manager."""

    def __init__(self, name: str, store_url: str, *, manages: bool = True, zone: str = "") -> None:
        self.name, self._store_url, self._manages, self._zone = name, store_url, manages, zone
        self.connections = Connections()
        self._pool: WorkerPool | None = None
        self._database: Database | None = None
        self._sessions: dict[str, Session] = {}
        self._reported: dict[str, tuple[Client, float]] = {}
        self._record: StoredRecord | None = None
        self._lines: Counter[str] = Counter()
        self._look = asyncio.Event()
        self._unreachable = False
        self._tasks: list[asyncio.Task[None]] = []
        self._manager: Manager | None = None
        self.setup: Setup

    @property
    def record(self) -> ClusterRecord:
        """What the manager wrote last, as far as it was read."""
        return ClusterRecord() if self._record is None else self._record.state

    @property
    def leads(self) -> bool:
        """Whether this process is the cluster's manager."""
        return self._manager is not None and self._manager.leads

    async def open(self) -> None:
        self._pool = WorkerPool(2, user="cluster client")
        try:
            self._database = await self._pool.run("receive", self._open_database)
            self.store = ClusterStore(self._database, self.name)
            self.setup = await self.call(self.store.setup)
            self._record = await self.call(self.store.read, None)
        except BaseException:
            await self._close_store()
            raise
        works = [self._keep_sessions()]
        if self._manages:
            self._manager = Manager(self.store, self._pool, self.setup, candidate_name(new_client_id(), 0))
            works.append(self._manager.run())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def close(self) -> None:
        for session in list(self._sessions.values()):
            await self.leave(session)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_store()

    async def join(self, role: Role, make_endpoint: Callable[[Session], Endpoint]) -> Session:
        """Begin a session, and wait until a node was elected and is connected."""
        session = Session(role, self._zone)
        session.token = await self._begin(session)
        session.start(make_endpoint(session))
        self._sessions[session.id] = session
        self._look.set()
        try:
            async with asyncio.timeout(JOIN_S):
                await session.wait_settled()
        except TimeoutError:
            await self.leave(session)
            why = session.failure or "no manager elected a node: is there a process that manages it?"
            raise Unreachable(f"cluster {self.name!r} has no node for a {role} in {JOIN_S:g} s: {why}") from None
        except BaseException:
            await self.leave(session)
            raise
        return session

    async def leave(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        self._reported.pop(session.id, None)
        await session.stop()
        with suppress(StoreError):  # then it expires
            await self.call(self.store.end, session.id, session.token)

    def find_url(self, node: str) -> str | None:
        """Where a node is, as far as it is known."""
        configured = self.setup.config.known_nodes.get(node)
        return self.record.urls.get(node) if configured is None else configured.url

    def list_urls(self) -> dict[str, str]:
        """All nodes of the cluster by name: the members, or, before there was a manager, those configured."""
        names = self.record.state.nodes or self.setup.config.nodes
        found = {name: self.find_url(name) for name in names}
        return {name: url for name, url in found.items() if url is not None}

    def note_line(self, node: str, change: int) -> None:
        """One connection to a node more or less: a node is not stopped while somebody has one."""
        self._lines[node] += change

    async def refresh_setup(self) -> Setup:
        self.setup = await self.call(self.store.setup, self.setup)
        return self.setup

    async def refresh_record(self) -> ClusterRecord:
        self._record = await self.call(self.store.read, self._record)
        return self._record.state

    async def call(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Call the store in a worker thread."""
        if self._pool is None:
            raise StoreError(f"the connection to cluster {self.name!r} is closed")
        return await self._pool.run("receive", call, *arguments)

    async def _keep_sessions(self) -> None:
        """Report and follow, until the client is closed."""
        while True:
            self._look.clear()
            try:
                await self._report_all()
                state = (await self.refresh_record()).state
                for session in self._sessions.values():
                    session.follow(state)
                self._note_reachable()
            except StoreError as error:
                self._note_unreachable(error)
            settled = all(session.is_settled for session in self._sessions.values())
            pause_s = self.setup.config.heartbeat_s / (1 if settled else FASTER)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look.wait()

    async def _report_all(self) -> None:
        """Report what changed, and everything once in a heartbeat."""
        config = self.setup.config
        for session in list(self._sessions.values()):
            lines = tuple(sorted(node for node, count in self._lines.items() if count > 0))
            report, now_s = replace(session.report, lines=lines), time.monotonic()
            last, reported_s = self._reported.get(session.id, (None, 0.0))
            if report == last and now_s - reported_s < 0.9 * config.heartbeat_s:
                continue
            renewal = await self.call(
                self.store.renew, session.id, session.token, report, config.session_timeout_s
            )
            if session.id not in self._sessions:
                continue  # it left meanwhile
            if renewal == "expired":
                session.token = await self._begin(session)
            self._reported[session.id] = (report, now_s)

    async def _begin(self, session: Session) -> int:
        ttl_s = self.setup.config.session_timeout_s
        return await self.call(self.store.begin, session.id, session.report, ttl_s)

    def _open_database(self) -> Database:
        # A client must not wait for the store for long: its node serves it anyway.
        return open_database(self._store_url, create=False, answer_timeout_s=3.0)

    async def _close_store(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            if self._database is not None:
                await pool.run("publish", self._database.close)
            await asyncio.to_thread(pool.close)

    def _note_unreachable(self, error: StoreError) -> None:
        if not self._unreachable:
            self._unreachable = True
            log.warning("the store of cluster %s cannot be used, clients go on: %s", self.name, error)

    def _note_reachable(self) -> None:
        if self._unreachable:
            self._unreachable = False
            log.warning("the store of cluster %s can be used again", self.name)
