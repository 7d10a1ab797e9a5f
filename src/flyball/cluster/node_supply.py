"""Nodes that are added and removed in the background, and the hosts that are offered for more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from flyball.cluster.config import ClusterConfig
from flyball.cluster.policy.decisions import AddNode, Decision, RemoveNode
from flyball.cluster.policy.events import AddFailed, NodeAdded
from flyball.cluster.policy.state import Host
from flyball.cluster.provisioners import ProvisioningFailed, make_provisioner
from flyball.cluster.records import ClusterRecord, DecisionRecord
from flyball.errors import FlyballError

_RETRY_S = 5.0
"""Pause before a lost node is started again, and before a removal is tried again."""
_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a node; `url` of one that runs, `error` if it failed."""

    action: Literal["add", "revive", "remove"]
    node: str
    url: str | None = None
    error: str | None = None


class NodeSupply:
    """`answers` tells whether a broker can be used. Calls return at once; `take_outcomes` has the results."""

    def __init__(self, config: ClusterConfig, answers: Callable[[str], Awaitable[bool]]) -> None:
        self._answers = answers
        self._provisioner = make_provisioner(config)
        self._timeout_s = 0.0 if config.provisioner is None else config.provisioner.timeout_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tried_s: dict[str, float] = {}
        self._outcomes: list[Outcome] = []

    @property
    def has_outcomes(self) -> bool:
        return bool(self._outcomes)

    def take_outcomes(self) -> tuple[Outcome, ...]:
        found, self._outcomes = tuple(self._outcomes), []
        return found

    def put_back(self, outcomes: Iterable[Outcome]) -> None:
        """What could not be recorded is taken again."""
        self._outcomes[:0] = outcomes

    def add(self, node: str) -> None:
        self._start(node, self._add("add", node))

    def remove(self, node: str) -> None:
        self._start(node, self._remove(node))

    def retry(self, record: ClusterRecord, lost: set[str]) -> None:
        """Start lost nodes again, and go on with removals that failed, now and then."""
        for node in sorted(record.removing | (lost & set(record.urls))):
            task = self._tasks.get(node)
            is_busy = task is not None and not task.done()
            if is_busy or time.monotonic() - self._tried_s.get(node, -_RETRY_S) < _RETRY_S:
                continue
            if node in record.removing:
                self.remove(node)
            else:
                self._start(node, self._add("revive", node))

    async def stop(self) -> None:
        """End what is under way: a successor begins it again."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        self._tasks.clear()
        self._outcomes = []

    def _start(self, node: str, work: Coroutine[Any, Any, Outcome]) -> None:
        """Begin when what was begun for this node before has ended."""
        self._tried_s[node] = time.monotonic()
        before = self._tasks.get(node)

        async def run() -> None:
            try:
                if before is not None:
                    await asyncio.wait([before])
                outcome = await work
                self._outcomes.append(outcome)  # the list may have been taken meanwhile
            finally:
                work.close()  # if it was cancelled before it began

        self._tasks[node] = asyncio.get_running_loop().create_task(run())

    async def _add(self, action: Literal["add", "revive"], node: str) -> Outcome:
        try:
            return Outcome(action, node, await self._add_checked(node, action))
        except (FlyballError, OSError) as error:
            return Outcome(action, node, error=str(error))

    async def _add_checked(self, node: str, action: Literal["add", "revive"]) -> str:
        if self._provisioner is None:
            raise ProvisioningFailed(f"the cluster has no provisioner that could start {node}")
        url = await self._provisioner.add(node)
        deadline_s = time.monotonic() + self._timeout_s
        while not await self._answers(url):
            if time.monotonic() > deadline_s:
                if action == "add":  # nothing can be on it yet
                    with suppress(FlyballError, OSError):
                        await self._provisioner.remove(node)
                raise ProvisioningFailed(f"{node} was started and does not answer in {self._timeout_s:g} s")
            await asyncio.sleep(_CHECK_S)
        return url

    async def _remove(self, node: str) -> Outcome:
        try:
            if self._provisioner is not None:
                await self._provisioner.remove(node)
        except (FlyballError, OSError) as error:
            return Outcome("remove", node, error=str(error))
        return Outcome("remove", node)


def list_hosts(config: ClusterConfig, record: ClusterRecord, readings: Mapping[str, object]) -> dict[str, Host]:
    """Brokers that run and answer, and names of nodes that could be started."""
    hosts = {
        name: Host(name, node.capacity, node.zone, is_ready=True, is_configured=node.capacity is not None)
        for name, node in config.known_nodes.items()
        if name not in record.state.nodes and readings.get(name) is not None
    }
    if config.provisioner is not None:
        for name in config.list_names():
            if name not in record.state.nodes and name not in record.removing:
                capacity = config.provisioner.capacity
                hosts[name] = Host(name, capacity, is_configured=capacity is not None)
    return hosts


def find_urls(config: ClusterConfig, record: ClusterRecord) -> dict[str, str]:
    """Of all nodes and hosts that have one."""
    return {name: node.url for name, node in config.known_nodes.items()} | dict(record.urls)


def list_additions(outcomes: Iterable[Outcome], now_s: float) -> tuple[NodeAdded | AddFailed, ...]:
    return tuple(
        AddFailed(now_s, one.node) if one.url is None else NodeAdded(now_s, one.node)
        for one in outcomes
        if one.action == "add"
    )


def add_outcomes(
    record: ClusterRecord, outcomes: Iterable[Outcome], decisions: Iterable[Decision], time_s: float
) -> ClusterRecord:
    """Remember where nodes are, which ones are being removed, and what failed."""
    urls, removing, entries = dict(record.urls), set(record.removing), []
    for one in outcomes:
        if one.error is not None:
            text = " ".join(one.error.split())
            entries.append(DecisionRecord(time_s, f"{one.action} {one.node} failed", "provisioning", text))
        elif one.url is not None:
            urls[one.node] = one.url
            if one.node not in record.state.nodes:  # too late: nobody waits for it any more
                removing.add(one.node)
        else:
            removing.discard(one.node)
            if one.node not in record.state.nodes:
                urls.pop(one.node, None)
    for decision in decisions:
        if isinstance(decision, RemoveNode) and decision.node in urls:
            removing.add(decision.node)
        elif isinstance(decision, AddNode):
            removing.discard(decision.node)
    return replace(record, urls=urls, removing=frozenset(removing)).add(entries)
