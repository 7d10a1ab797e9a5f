"""The manager of a cluster: every client is a candidate, the one with the lease makes rounds.

Ranked goals: clients are never worse off because of it; a node that is lost is noticed soon; queues are balanced.

A round looks at the clients' sessions, and every `heartbeat_s` at the nodes; the policy decides; the record is
written before anything is done, with the token of the lease, so that a manager that was paused and replaced
changes nothing. Clients follow the record by themselves. Messages are moved in the background. When a manager
dies, clients stay where they are; its successor goes on from the record, the sessions and what the nodes say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flyball.brokers.core.checks import ChannelSpec
from flyball.cluster.cluster_store import ClientSession, ClusterStore, Setup, StoredRecord
from flyball.cluster.config import ClusterConfig
from flyball.cluster.mover import Mover
from flyball.cluster.node_connections import NodeConnections
from flyball.cluster.node_supply import NodeSupply, add_outcomes, find_urls, list_additions, list_hosts
from flyball.cluster.policy.capacity import CapacityEstimator
from flyball.cluster.policy.decisions import AddNode, Decision, MoveMessages, RemoveNode
from flyball.cluster.policy.events import MessagesMoved, Reading
from flyball.cluster.policy.management import Client, Observation, Picture, manage
from flyball.cluster.policy.measuring import Measuring, NodeCapacity, judge_node, measure
from flyball.cluster.policy.requests import Request
from flyball.cluster.policy.state import State, Status
from flyball.cluster.policy.succession import take_over
from flyball.cluster.records import add_changes, add_decisions
from flyball.errors import FlyballError
from flyball.store.candidacy import Candidacy
from flyball.store.leases import Lease
from flyball.store.protocol import Conflict, Fenced, StoreError
from flyball.store.worker_pool import WorkerPool

log = logging.getLogger("flyball.cluster")

Result = TypeVar("Result")

FASTER = 5
"""How much more often than a heartbeat sessions are looked at."""


@dataclass
class _Led:
    """What the leader works with."""

    stored: StoredRecord
    setup: Setup
    clients: Mapping[str, Client]


class Manager:
    """One candidate. `run` goes on until it is cancelled; then it resigns."""

    def __init__(
        self,
        store: ClusterStore,
        pool: WorkerPool,
        setup: Setup,
        candidate: str,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._pool, self._setup, self._wall_clock = store, pool, setup, wall_clock
        config = setup.config
        self._candidacy = Candidacy(store, candidate, ttl_s=config.session_timeout_s)
        self._nodes = NodeConnections(timeout_s=config.lost_after_s / 2)
        self._supply = NodeSupply(config, self._answers)
        self._mover = Mover(self._nodes)
        self._led: _Led | None = None
        self._asked_s = -config.heartbeat_s
        self._estimator = CapacityEstimator()
        self._measuring = Measuring()
        self._moved: list[MessagesMoved] = []
        self._transfers: set[asyncio.Task[None]] = set()
        self._complaint = ""

    @property
    def leads(self) -> bool:
        return self._candidacy.leads

    async def run(self) -> None:
        pause_s = self._setup.config.heartbeat_s / FASTER
        try:
            while True:
                await self._try_round()
                await asyncio.sleep(pause_s)
        finally:
            await self._stop()

    async def _try_round(self) -> None:
        try:
            await self._run_round()
        except Exception as error:  # noqa: BLE001 - a round that fails must not end the clients
            self._led = None if isinstance(error, Fenced | Conflict) else self._led
            with suppress(StoreError):
                await self._call(self._candidacy.note_failure, error)
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("a round of cluster %s failed: %s", self._setup.config.name, error)
        else:
            self._candidacy.note_success()
            self._complaint = ""

    async def _run_round(self) -> None:
        config = self._setup.config
        is_due = time.monotonic() - self._asked_s >= config.heartbeat_s
        lease = self._candidacy.lease
        if is_due:
            self._asked_s = time.monotonic()
            lease, is_new = await self._call(self._candidacy.campaign)
            if is_new:
                self._led = None
        if lease is None:
            return
        led = self._led or await self._take_over()
        if is_due:
            self._setup = led.setup = await self._call(self._store.setup, led.setup)
        sessions = await self._call(self._store.sessions)
        await self._remove_expired(sessions, lease)
        clients = {session.id: session.client for session in sessions if session.alive}
        requests = await self._call(self._store.requests)
        is_quiet = clients == led.clients and not (self._moved or requests or self._supply.has_outcomes)
        if is_quiet and not is_due:
            return
        readings = await self._read_nodes(led, clients) if is_due else None
        await self._advance(led, clients, readings, requests, lease)

    async def _take_over(self) -> _Led:
        """Go on from what the last manager wrote."""
        await self._end_work()
        setup = await self._call(self._store.setup)
        stored = await self._call(self._store.read)
        picture = take_over(stored.state.picture, setup.config.make_nodes(), await self._now_s())
        self._setup = setup
        stored = replace(stored, state=replace(stored.state, picture=picture))
        self._led = _Led(stored, setup, {})
        for name, node in picture.state.nodes.items():
            if node.status is Status.ADDING:
                self._supply.add(name)
        for name in stored.state.removing:
            self._supply.remove(name)
        log.info("%s manages cluster %s", self._candidacy.candidate, setup.config.name)
        return self._led

    async def _advance(
        self,
        led: _Led,
        clients: Mapping[str, Client],
        readings: Mapping[str, Reading | None] | None,
        requests: tuple[Request, ...],
        lease: Lease,
    ) -> None:
        config = led.setup.config
        moved, self._moved = tuple(self._moved), []
        known, now_s, outcomes = led.stored.state, await self._now_s(), self._supply.take_outcomes()
        observation = Observation(
            now_s,
            clients,
            readings,
            moved,
            led.setup.drains,
            requests,
            hosts=None if readings is None else list_hosts(config, known, readings),
            added=list_additions(outcomes, now_s),
        )
        before: Picture = known.picture
        picture, decisions = manage(config.rules, before, observation, lost_after_s=config.lost_after_s)
        time_s = self._wall_clock()
        record = add_outcomes(replace(known, picture=picture), outcomes, decisions, time_s)
        if readings is not None:
            record = replace(record, asked_time_s=time_s)
        estimates = {name: self._judge(config, name).text for name in picture.state.nodes}
        record = replace(record, estimates=estimates)
        record = add_changes(record, before.state, time_s)
        record = add_decisions(record, decisions, time_s)
        try:
            led.stored = await self._call(self._store.write_answered, record, led.stored, lease, requests)
        except StoreError:
            self._moved[:0] = moved
            self._supply.put_back(outcomes)
            raise
        led.clients = clients
        self._act(led, decisions)
        lost = {name for name, node in picture.state.nodes.items() if node.status is Status.LOST}
        self._supply.retry(record, lost)

    async def _remove_expired(self, sessions: list[ClientSession], lease: Lease) -> None:
        expired = [(session.id, session.token) for session in sessions if not session.alive]
        if expired:
            await self._call(self._store.remove_sessions, expired, lease)

    # --- nodes --------------------------------------------------------------------------------------------------

    async def _read_nodes(self, led: _Led, clients: Mapping[str, Client]) -> dict[str, Reading | None]:
        config, record = led.setup.config, led.stored.state
        idle = Counter(client.node for client in clients.values() if client.role == "consumer" and client.is_idle)
        used = {node for client in clients.values() for node in client.lines}
        urls = {
            name: url
            for name, url in find_urls(config, record).items()
            if name in record.state.nodes or name in config.known_nodes
        }
        lengths = await self._nodes.read_lengths(urls, list_channels(led.setup))
        queues = {name: None if each is None else each[config.queue_name] for name, each in lengths.items()}
        moving = {name for pair in record.state.transfers for name in pair}
        self._measuring = measure(self._estimator, self._measuring, clients, queues, moving, await self._now_s())
        readings = {
            name: None
            if by_channel is None
            else _make_reading(record.state, config.queue_name, name, by_channel, idle, self._judge(config, name))
            for name, by_channel in lengths.items()
        }
        return {name: reading and replace(reading, is_used=name in used) for name, reading in readings.items()}

    async def _answers(self, url: str) -> bool:
        """Whether a broker can be used: the cluster's queues are declared there."""
        return (await self._nodes.read_lengths({"": url}, list_channels(self._setup)))[""] is not None

    def _judge(self, config: ClusterConfig, name: str) -> NodeCapacity:
        return judge_node(self._estimator, self._measuring, name, config.find_capacity(name))

    def _act(self, led: _Led, decisions: tuple[Decision, ...]) -> None:
        names = led.setup.config.list_names()
        for decision in decisions:
            if isinstance(decision, MoveMessages):
                urls = find_urls(led.setup.config, led.stored.state)
                task = asyncio.get_running_loop().create_task(
                    self._move(led.setup, urls, led.stored.state.state, decision)
                )
                self._transfers.add(task)
                task.add_done_callback(self._transfers.discard)
            elif isinstance(decision, AddNode) and decision.node in names:
                self._supply.add(decision.node)
            elif isinstance(decision, RemoveNode) and decision.node in led.stored.state.removing:
                self._nodes.give_up(led.stored.state.urls[decision.node])
                self._supply.remove(decision.node)

    async def _move(self, setup: Setup, urls: Mapping[str, str], state: State, decision: MoveMessages) -> None:
        source, target = urls[decision.source], urls[decision.target]
        marked = state.nodes[decision.source].mark is not None
        moved = 0
        for channel in list_channels(setup) if marked else list_channels(setup)[:1]:
            if moved < decision.count:
                try:
                    pair = (decision.source, decision.target)
                    moved += await self._mover.move(pair, source, target, channel, decision.count - moved)
                except (FlyballError, OSError) as error:
                    log.warning(
                        "moving messages from %s to %s failed: %s", decision.source, decision.target, error
                    )
        self._moved.append(MessagesMoved(await self._now_s(), decision.source, decision.target, moved))

    async def _end_work(self) -> None:
        """Transfers, additions and removals are the leader's: another one would only repeat them."""
        await self._supply.stop()
        for task in self._transfers:
            task.cancel()
        if self._transfers:
            await asyncio.wait(self._transfers)
        self._moved = []

    async def _stop(self) -> None:
        await self._end_work()
        with suppress(StoreError):  # then the lease expires
            await self._call(self._candidacy.resign)
        await self._nodes.close()

    async def _now_s(self) -> float:
        return await self._call(self._store.now_s)

    async def _call(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await self._pool.run("publish", call, *arguments)


def list_channels(setup: Setup) -> tuple[ChannelSpec, ...]:
    """The cluster's queue first, then the others."""
    queue = setup.config.queue_name
    return (setup.find_channel(queue) or ChannelSpec(queue), *(one for one in setup.channels if one.name != queue))


def _make_reading(
    state: State,
    queue: str,
    name: str,
    lengths: Mapping[str, int],
    idle: Counter[str | None],
    found: NodeCapacity,
) -> Reading:
    """Of a node that is emptied, the other channels count, too."""
    node = state.nodes.get(name)
    is_marked = node is not None and node.mark is not None
    length = sum(lengths.values()) if is_marked else lengths[queue]
    return Reading(length, idle[name], found.rate_per_s, found.capacity, found.is_saturated)
