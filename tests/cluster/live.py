"""A cluster on embedded nodes for tests, and waiting for what its manager does."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ParamSpec

from flyball import ClusterConfig, ClusterNode, create_cluster
from flyball.cluster.cluster_store import ClusterStore
from flyball.cluster.policy.requests import Action
from flyball.cluster.records import AnswerRecord, ClusterRecord
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
        capacity: int = 100,
        **options: Any,
    ) -> None:
        self.queue = queue
        self.store = f"sqlite:///{folder}/cluster.db"
        self.nodes = dict(nodes or {name: f"sqlite:///{folder}/{name}.db" for name in "ab"})
        create_cluster(
            self.store,
            ClusterConfig(
                name="shop",
                queue=queue,
                nodes={name: ClusterNode(url=url, capacity=capacity) for name, url in self.nodes.items()},
                heartbeat_s=0.2,
                session_timeout_s=session_timeout_s,
                lost_after_s=lost_after_s,
                **options,
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

    def ask(self, action: Action, subject: str) -> str:
        """Ask the manager, and return the id of the request."""
        with closing(open_database(self.store)) as database:
            return ClusterStore(database, "shop").ask(action, subject).request.id

    async def wait_for_answer(self, action: Action, subject: str = "") -> AnswerRecord:
        id = await asyncio.to_thread(self.ask, action, subject)
        answer = (await self.wait_for(lambda record: record.find_answer(id) is not None)).find_answer(id)
        assert answer is not None
        return answer

    def configure(self, **options: Any) -> None:
        with closing(open_database(self.store)) as database:
            ClusterStore(database, "shop").configure(**options)

    async def wait_for(self, condition: Callable[[ClusterRecord], bool]) -> ClusterRecord:
        """Wait until the manager's record is as wanted."""
        async with asyncio.timeout(GUARD_S):
            while True:
                record = await asyncio.to_thread(self.read)
                if condition(record):
                    return record
                await asyncio.sleep(0.05)


class ManagerProcess:
    """A process that does nothing but manage a cluster; `kill` ends it as a crash does."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> ManagerProcess:
        program = (
            "import asyncio, sys\n"
            "from flyball import connect\n"
            "async def main():\n"
            "    broker = await connect(sys.argv[1])\n"
            "    while not broker.leads:\n"
            "        await asyncio.sleep(0.02)\n"
            "    print('leads', flush=True)\n"
            "    await asyncio.sleep(600)\n"
            "asyncio.run(main())\n"
        )
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, self._url, stdout=asyncio.subprocess.PIPE
        )
        assert self._child.stdout is not None
        async with asyncio.timeout(GUARD_S):
            assert await self._child.stdout.readline() == b"leads\n"
        return self

    async def kill(self) -> None:
        if self._child.returncode is None:
            self._child.kill()
        await self._child.wait()

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
