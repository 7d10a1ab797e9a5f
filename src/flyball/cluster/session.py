"""One client of a cluster: its session in the store, and the node where it is, or is to be."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from typing import Protocol

from flyball.backoff import ENDLESS, delays_s
from flyball.cluster.policy.management import Client
from flyball.cluster.policy.state import Role, State, Status
from flyball.cluster.work_meter import WorkMeter
from flyball.errors import FlyballError

log = logging.getLogger("flyball.cluster")

_LONGEST_RETRY_S = 1.0


class Endpoint(Protocol):
    """A sender or receiver that can be moved."""

    async def move(self, node: str, *, old_is_lost: bool) -> None:
        """Go on at `node`; raises what prevented it, and is then where it was."""


def new_client_id() -> str:
    return f"{socket.gethostname()}-{secrets.token_hex(6)}"


class Session:
    """Follows what the manager's record says; its `endpoint` does the work.

    `id` is new for each client: a client that is started again is another one.
    """

    def __init__(self, role: Role, zone: str) -> None:
        self.id = new_client_id()
        self.role, self.zone = role, zone
        self.token = 0
        self.meter = WorkMeter()
        self.node: str | None = None
        self.is_idle = False
        self.is_troubled = False
        """Its node does not answer it."""
        self._failed: str | None = None
        self._wanted: str | None = None
        self._is_lost = False
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failure: FlyballError | None = None
        """Why it is not where it should be."""

    @property
    def report(self) -> Client:
        return Client(self.role, self.node, self._failed, self.is_idle, self.zone, work=self.meter.read())

    @property
    def is_settled(self) -> bool:
        """Whether it is where it should be, and can work there as far as is known."""
        return self.node is not None and self.node == self._wanted and not (self._is_lost or self.is_troubled)

    def follow(self, state: State) -> None:
        """Take in the manager's newest record; a move that has not begun waits for its turn."""
        session = state.sessions.get(self.id)
        if session is None:
            return  # not elected yet, or forgotten by a manager that lost its state: stay
        node = session.node if session.started_s is None else session.place
        here = None if self.node is None else state.nodes.get(self.node)
        self._is_lost = here is not None and here.status is Status.LOST
        if node != self._wanted:
            self._wanted, self._failed = node, None
            self._changed.set()

    def start(self, endpoint: Endpoint) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_place(endpoint))

    async def wait_settled(self) -> None:
        """Wait until it has a node for the first time."""
        await self._settled.wait()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_place(self, endpoint: Endpoint) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for delay_s in delays_s(ENDLESS, longest_s=_LONGEST_RETRY_S):
                wanted = self._wanted
                if wanted is None or wanted == self.node:
                    break
                try:
                    await endpoint.move(wanted, old_is_lost=self._is_lost)
                except (FlyballError, OSError) as error:
                    log.info("client %s cannot use node %s: %s", self.id, wanted, error)
                    self.failure = error if isinstance(error, FlyballError) else None
                    self._failed = wanted
                    await asyncio.sleep(delay_s)
                else:
                    self.node, self._failed, self.failure = wanted, None, None
                    self._is_lost = self.is_troubled = False
                    self._settled.set()
                    break
