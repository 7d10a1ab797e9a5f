"""Sends to a queue beside the cluster's own, such as that of dead letters: at the first node that answers."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.brokers import Broker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import BrokerError, Message, Sender, SendResult, Unreachable, is_permanent
from flyball.cluster.client import ClusterClient
from flyball.cluster.lines import Line, open_line
from flyball.errors import FlyballError


class OtherSender:
    """See `port.Sender`. It is no client of the cluster: what it sends is rare."""

    def __init__(self, client: ClusterClient, channel: ChannelSpec) -> None:
        self._client, self._channel = client, channel
        self._line: Line[Sender] | None = None
        self.closed = False

    @property
    def blocked(self) -> bool:
        return self._line is not None and self._line.end.blocked

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        if self._line is not None and not self._may_stay(self._line):
            left, self._line = self._line, None
            await left.finish()
        try:
            line = self._line = self._line or await self._open()
        except BrokerError as error:
            return [SendResult(message.id, error) for message in messages]
        results = await line.end.send_batch(messages, sequence=sequence)
        if any(result.error is not None and not is_permanent(result.error) for result in results):
            self._line = None  # the next attempt is for another node
            await line.finish()
        return results

    def _may_stay(self, line: Line[Sender]) -> bool:
        """A node that is being emptied gets nothing more: it may be stopped soon."""
        nodes = self._client.record.state.nodes
        return not nodes or (line.node in nodes and nodes[line.node].is_member)

    async def _open(self) -> Line[Sender]:
        async def open_end(broker: Broker) -> Sender:
            return await broker.sender(self._channel.name)

        state = self._client.record.state
        names = [node.name for node in state.members] or list(self._client.list_urls())
        problem: Exception | None = None
        for name in names:
            try:
                return await open_line(self._client, name, self._channel, open_end, counts=False)
            except (FlyballError, OSError) as error:
                problem = error
        raise Unreachable(f"no node of cluster {self._client.name!r} takes {self._channel.name!r}: {problem}")

    async def last_sequence(self) -> int | None:
        return None

    async def close(self) -> None:
        self.closed = True
        line, self._line = self._line, None
        if line is not None:
            await line.finish()
