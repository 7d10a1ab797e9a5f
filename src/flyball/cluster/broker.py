"""`cluster://NAME?store=URL`: a clustered queue behind the port.

    store=sqlite:///cluster.db   where the cluster was created; postgresql://… between hosts
    manage=yes                   this process is a candidate for the cluster's manager; no: it is not
    zone=                        where this process is; of equal nodes, one of the same zone is elected

Senders and receivers of the cluster's queue are its clients: each has a session, and is connected to the node that
was elected for it. Other queues, such as that of dead letters, can be sent to; they are at one node at a time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Literal, TypeVar, overload

from flyball.brokers import Broker
from flyball.brokers.core.broker import BaseBroker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.names import check_name
from flyball.brokers.core.receiver import BaseReceiver
from flyball.brokers.port import (
    Capabilities,
    ChannelInfo,
    NoSuchChannel,
    Receiver,
    Record,
    Sender,
    Start,
    Unreachable,
    Unsupported,
    no_such_channel,
)
from flyball.brokers.url import BrokerUrl
from flyball.cluster.client import ClusterClient
from flyball.cluster.manager import list_channels
from flyball.cluster.node_connections import NodeConnections, declare
from flyball.cluster.other_sender import OtherSender
from flyball.cluster.receiver import ClusterReceiver
from flyball.cluster.sender import ClusterSender
from flyball.errors import FlyballError, InvalidValue

AnyEnd = TypeVar("AnyEnd", bound=ClusterSender | ClusterReceiver | OtherSender)

_FRESH = 3
"""Heartbeats for which the manager's figures count as those of now."""
OPTIONS = ("store", "manage", "zone")


async def connect(url: BrokerUrl) -> Broker:
    url.check_options(*OPTIONS)
    name = url.hosts[0][0] if len(url.hosts) == 1 and url.path in ("", "/") else ""
    store, manages = url.options.get("store"), url.options.get("manage", "yes")
    if not name or not store:
        raise InvalidValue(f"{url} must name a cluster and its store: cluster://NAME?store=sqlite:///cluster.db")
    if manages not in ("yes", "no"):
        raise InvalidValue(f"option manage of {url} must be yes or no, got {manages!r}")
    client = ClusterClient(name, store, manages=manages == "yes", zone=url.options.get("zone", ""))
    await client.open()
    broker = ClusterBroker(client)
    try:
        await broker.open()
    except BaseException:
        await broker.close()
        raise
    return broker


class ClusterBroker(BaseBroker[BaseReceiver]):
    """See `port.Broker`. A declared queue exists at every node; its depth is what the manager read last."""

    capabilities: Capabilities

    def __init__(self, client: ClusterClient) -> None:
        super().__init__()
        self._client = client
        self._ends: list[ClusterSender | ClusterReceiver | OtherSender] = []

    @property
    def leads(self) -> bool:
        """Whether this process is the cluster's manager."""
        return self._client.leads

    @property
    def _queue(self) -> str:
        return self._client.setup.config.queue_name

    async def open(self) -> None:
        """Find out from a node that answers what the brokers can do."""
        problem: Exception | None = None
        for url in self._client.list_urls().values():
            try:
                connection = await self._client.connections.acquire(url)
            except (FlyballError, OSError) as error:
                problem = error
                continue
            found = connection.broker.capabilities
            await self._client.connections.close(connection)
            self.capabilities = Capabilities(
                queues=True,
                logs=False,
                durable=found.durable,
                dedup=False,
                shared_between_processes=True,
                max_body_bytes=found.max_body_bytes,
            )
            return
        raise Unreachable(f"no node of cluster {self._client.name!r} answers; the last said: {problem}")

    @overload
    async def connect(self, role: Literal["producer"]) -> ClusterSender: ...
    @overload
    async def connect(self, role: Literal["consumer"], *, window: int = 100) -> ClusterReceiver: ...
    async def connect(
        self, role: Literal["producer", "consumer"], *, window: int = 100
    ) -> ClusterSender | ClusterReceiver:
        """Join the cluster: a node is elected, and its sender or receiver returned."""
        channel = await self._find(self._queue)
        end: ClusterSender | ClusterReceiver
        if role == "producer":
            end = ClusterSender(self._client, channel)
        elif role == "consumer":
            end = ClusterReceiver(self._client, channel, window)
        else:
            raise InvalidValue(f"role must be producer or consumer, got {role!r}")
        await end.open()
        return self._register(end)

    async def sender(self, channel: str, *, producer: str | None = None) -> Sender:  # noqa: ARG002  for logs
        if check_name(channel) == self._queue:
            return await self.connect("producer")
        return self._register(OtherSender(self._client, await self._find(channel)))

    async def receiver(self, queue: str, *, window: int = 100) -> Receiver:
        if check_name(queue) != self._queue:
            await self._find(queue)
            raise self._only_at_nodes(queue)
        return await self.connect("consumer", window=window)

    async def subscribe(
        self,
        pattern: str,
        group: str,  # noqa: ARG002
        *,
        window: int = 100,  # noqa: ARG002
        start: Start = "latest",  # noqa: ARG002
    ) -> Receiver:
        raise Unsupported(
            f"a cluster has no subscriptions (asked for {pattern!r}): its consumers share {self._queue!r}"
        )

    def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:  # noqa: ARG002
        raise self._no_log(log)

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:  # noqa: ARG002
        raise self._no_log(log)

    def _check_kind(self, spec: ChannelSpec) -> None:
        if spec.kind == "log":
            raise self._no_log(spec.name)

    async def _declare(self, spec: ChannelSpec) -> None:
        """The nodes declare it as soon as they are used."""
        self._client.setup = await self._client.call(self._client.store.add_channel, spec)

    async def delete(self, channel: str) -> None:
        await self._client.call(self._client.store.remove_channel, check_name(channel))
        for url in self._client.list_urls().values():
            connection = await self._client.connections.acquire(url)
            try:
                await connection.broker.delete(channel)
            finally:
                await self._client.connections.close(connection)
        await self._client.refresh_setup()

    async def purge(self, channel: str) -> int | None:
        spec, removed = await self._find(channel), 0
        for url in self._client.list_urls().values():
            connection = await self._client.connections.acquire(url)
            try:
                await declare(connection.broker, spec)
                removed += await connection.broker.purge(channel) or 0
            finally:
                await self._client.connections.close(connection)
        return removed

    async def depth(self, channel: str, group: str | None = None) -> int:  # noqa: ARG002  there are none
        await self._find(channel)
        if channel != self._queue:
            raise self._only_at_nodes(channel)
        record, config = await self._client.refresh_record(), self._client.setup.config
        if time.time() - record.asked_time_s < _FRESH * config.heartbeat_s:
            return sum(node.length or 0 for node in record.state.nodes.values())
        nodes = NodeConnections(timeout_s=config.lost_after_s)  # nobody manages just now
        try:
            lengths = await nodes.read_lengths(self._client.list_urls(), (await self._find(channel),))
        finally:
            await nodes.close()
        return sum(by_channel[channel] for by_channel in lengths.values() if by_channel is not None)

    async def oldest_age_s(self, channel: str) -> float | None:
        await self._find(channel)
        return None

    async def channels(self) -> list[ChannelInfo]:
        setup = await self._client.refresh_setup()
        return [
            ChannelInfo(one.name, "queue", depth=await self.depth(one.name) if one.name == self._queue else None)
            for one in list_channels(setup)
        ]

    async def has_dead_letter_exchange(self, queue: str) -> bool | None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            await end.close()
        await self._client.close()

    def _register(self, end: AnyEnd) -> AnyEnd:
        """Remember what `close` has to close; what was closed meanwhile is dropped."""
        self._ends = [*(each for each in self._ends if not each.closed), end]
        return end

    async def _find(self, channel: str) -> ChannelSpec:
        """The cluster's queue, or another that was declared."""
        if channel == self._queue:
            return list_channels(self._client.setup)[0]
        found = self._client.setup.find_channel(channel) or (await self._client.refresh_setup()).find_channel(
            channel
        )
        if found is None:
            raise no_such_channel(
                "queue", channel, f"in cluster {self._client.name!r}, whose queue is {self._queue!r}"
            )
        return found

    def _only_at_nodes(self, channel: str) -> NoSuchChannel:
        nodes = ", ".join(str(BrokerUrl.parse(url)) for url in self._client.list_urls().values())
        return NoSuchChannel(
            f"{channel!r} is not the queue of cluster {self._client.name!r}, {self._queue!r}: read it at its "
            f"nodes, {nodes}"
        )

    def _no_log(self, log: str) -> Unsupported:
        return Unsupported(
            f"a cluster has queues and no logs (asked for {log!r}): use kafka:// or rabbitmq-stream://"
        )
