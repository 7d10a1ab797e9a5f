"""A cluster on embedded nodes for tests, and waiting for what its manager does."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ParamSpec

from flyball import ClusterConfig, ClusterNode, create_cluster
from flyball.cluster.cluster_store import ClusterStore
from flyball.cluster.records import ClusterRecord
from flyball.store import open_database

GUARD_S = 180.0
QUEUE = "orders"


Arguments = ParamSpec("Arguments")


def in_event_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class LiveCluster:
    """A cluster "shop", on two embedded nodes if no others are named."""

    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, str] | None = None,
        *,
        queue: str = QUEUE,
        lost_after_s: float = 30.0,
        session_timeout_s: float = 3.0,
    ) -> None:
        self.queue = queue
        self.store = f"sqlite:///{folder}/cluster.db"
        self.nodes = dict(nodes or {name: f"sqlite:///{folder}/{name}.db" for name in "ab"})
        create_cluster(
            self.store,
            ClusterConfig(
                name="shop",
                queue=queue,
                nodes={name: ClusterNode(url=url) for name, url in self.nodes.items()},
                heartbeat_s=0.2,
                session_timeout_s=session_timeout_s,
                lost_after_s=lost_after_s,
            ),
        )
        self.url = f"cluster://shop?store={self.store}"

    def read(self) -> ClusterRecord:
        with closing(open_database(self.store)) as database:
            return ClusterStore(database, "shop").read().state

    def drain(self, node: str, *, wanted: bool = True) -> None:
        with closing(open_database(self.store)) as database:
            ClusterStore(database, "shop").drain(node, wanted=wanted)

    def leader(self) -> str | None:
        with closing(open_database(self.store)) as database:
            return ClusterStore(database, "shop").leader()

    async def wait_for(self, condition: Callable[[ClusterRecord], bool]) -> ClusterRecord:
        """Wait until the manager's record is as wanted."""
        async with asyncio.timeout(GUARD_S):
            while True:
                record = await asyncio.to_thread(self.read)
                if condition(record):
                    return record
                await asyncio.sleep(0.05)
