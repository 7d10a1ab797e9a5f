"""RabbitMQ nodes that are slower than the machine: each has a part of a processor, or a slow link, of its own.

Without that, two nodes on one machine share what one node would have alone, and nothing can be said about adding
one. A quota of the processor is the better limit: it is that of the node, whatever its clients are. Where quotas
cannot be set, a proxy in front of each node limits the bytes a second of every connection.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from string import ascii_lowercase
from types import TracebackType
from typing import Self

from flyball.lab.rigs.cluster.processor_share import ProcessorShare, can_limit
from flyball.servers.ports import LOOPBACK
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode

PLUGINS = ("rabbitmq_shovel",)
_LINK_BYTES_PER_S = 4e6
"""Of a link that stands for a whole processor."""


class LimitedNode:
    """One node with its limit; `by_quota` False: by the link."""

    def __init__(self, name: str, *, by_quota: bool) -> None:
        self.name = name
        self.server = RabbitMqNode(plugins=PLUGINS)
        self._part, self._by_quota = 1.0, by_quota
        self._share: ProcessorShare | None = None
        self._proxy: FaultProxy | None = None

    @property
    def url(self) -> str:
        if self._proxy is None:
            return self.server.amqp_url
        return f"amqp://guest:guest@{LOOPBACK}:{self._proxy.port}/"

    def start(self) -> None:
        """Start it, and limit it then: the start is not what is measured."""
        self.server.start()
        if self._by_quota:
            self._share = self._share or ProcessorShare(self._part)
            for pid in self.server.pids:
                self._share.add(pid)
        elif self._proxy is None:
            self._proxy = FaultProxy(self.server.ports.amqp)
            self._proxy.start()
        self.limit(self._part)

    def limit(self, part: float) -> None:
        """Give it this part of a processor, or of the link that stands for one."""
        self._part = part
        if self._share is not None:
            self._share.set(part)
        if self._proxy is not None:
            self._proxy.set_bandwidth(part * _LINK_BYTES_PER_S)

    def stop(self) -> None:
        if self._proxy is not None:
            self._proxy.stop()
        if self._share is not None:
            self._share.set(1.0)  # a clean end is work, too
        self.server.stop()
        if self._share is not None:
            self._share.close()


class LimitedNodes:
    """Nodes "a", "b", …, a context manager."""

    def __init__(self, count: int, *, by_quota: bool | None = None) -> None:
        self._by_quota = can_limit() if by_quota is None else by_quota
        self._nodes = [LimitedNode(name, by_quota=self._by_quota) for name in ascii_lowercase[:count]]
        self._used = count

    def limit(self, *parts: float) -> str:
        """Use as many of the nodes, with these limits; return how they are limited, for people."""
        for node, part in zip(self._nodes, parts, strict=False):
            node.limit(part)
        self._used = len(parts)
        if self._by_quota:
            return f"each node has a quota of one processor ({', '.join(f'{100 * part:g} %' for part in parts)})"
        speeds = ", ".join(f"{part * _LINK_BYTES_PER_S / 1e6:g}" for part in parts)
        return f"quotas cannot be set here: each connection to a node has a link of so many MB/s ({speeds})"

    @property
    def urls(self) -> dict[str, str]:
        """Of those that are used."""
        return {node.name: node.url for node in self._nodes[: self._used]}

    def __getitem__(self, name: str) -> LimitedNode:
        return next(node for node in self._nodes if node.name == name)

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(self._nodes)) as pool:
                list(pool.map(LimitedNode.start, self._nodes))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            list(pool.map(LimitedNode.stop, self._nodes))
