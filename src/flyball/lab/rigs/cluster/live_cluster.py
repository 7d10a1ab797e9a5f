"""A cluster "bench" on nodes, with a new store for each, and waiting for what its manager does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from flyball.cluster.cluster_store import ClusterStore, create_cluster
from flyball.cluster.config import ClusterConfig, ClusterNode
from flyball.cluster.records import ClusterRecord
from flyball.store.url import open_database

_GUARD_S = 120.0


class LiveCluster:
    """Its settings are the defaults, but for what a case is about."""

    def __init__(self, folder: Path, nodes: Mapping[str, str], **options: Any) -> None:
        self.queue = f"bench.{uuid4().hex}"
        self._store = f"sqlite:///{folder}/{self.queue}.db"
        self.url = f"cluster://bench?store={self._store}"
        configured = {name: ClusterNode(url=url) for name, url in nodes.items()}
        create_cluster(self._store, ClusterConfig(name="bench", queue=self.queue, nodes=configured, **options))

    async def read(self) -> ClusterRecord:
        return await asyncio.to_thread(self._call, lambda store: store.read().state)

    async def drain(self, node: str, *, wanted: bool = True) -> None:
        await asyncio.to_thread(self._call, lambda store: store.drain(node, wanted=wanted))

    async def wait_for(self, condition: Callable[[ClusterRecord], bool]) -> ClusterRecord:
        """Wait until the manager's record is as wanted."""
        due_s = time.monotonic() + _GUARD_S
        while time.monotonic() < due_s:
            record = await self.read()
            if condition(record):
                return record
            await asyncio.sleep(0.05)
        raise TimeoutError(f"the cluster did not become as wanted in {_GUARD_S:g} s")

    def _call(self, call: Callable[[ClusterStore], Any]) -> Any:
        with closing(open_database(self._store)) as database:
            return call(ClusterStore(database, "bench"))
