"""A producer of the cluster: the ordinary sender of the elected node, replaced when the session moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from flyball.brokers import Broker
from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import Message, Sender, SendResult, Unconfirmed, Unreachable, is_permanent
from flyball.cluster.client import ClusterClient
from flyball.cluster.lines import BackgroundTasks, Line, open_line
from flyball.cluster.session import Session

_CLOSE_S = 5.0


class ClusterSender:
    """See `port.Sender`. A batch that was on its way to a node that is lost has the error `Unconfirmed`: send it
    again, with the same ids. A session that moves from a healthy node finishes its batches there."""

    def __init__(self, client: ClusterClient, channel: ChannelSpec) -> None:
        self._client, self._channel = client, channel
        self._line: Line[Sender] | None = None
        self._session: Session
        self._background = BackgroundTasks()

    async def open(self) -> None:
        def register(session: Session) -> ClusterSender:
            self._session = session
            return self

        await self._client.join("producer", register)

    async def move(self, node: str, *, old_is_lost: bool) -> None:
        async def open_end(broker: Broker) -> Sender:
            return await broker.sender(self._channel.name)

        old, self._line = self._line, await open_line(self._client, node, self._channel, open_end)
        if old is not None:
            if old_is_lost:
                old.abandon()
            self._background.start(old.finish())

    @property
    def closed(self) -> bool:
        return self._line is None

    @property
    def node(self) -> str | None:
        """The node that has what is sent now."""
        return None if self._line is None else self._line.node

    @property
    def blocked(self) -> bool:
        return self._line is not None and self._line.end.blocked

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        line = self._line
        if line is None:
            error = Unreachable(f"this sender to {self._channel.name!r} is closed: open another")
            return [SendResult(message.id, error) for message in messages]
        began_s = time.monotonic()
        task = asyncio.get_running_loop().create_task(line.end.send_batch(messages, sequence=sequence))
        line.running.add(task)
        task.add_done_callback(line.running.discard)
        try:
            results = await task
        except asyncio.CancelledError:
            task.cancel()
            current = asyncio.current_task()
            if not line.is_abandoned or (current is not None and current.cancelling()):
                raise
            lost = Unconfirmed(
                f"node {line.node} was lost: whether it has the message is not known, send it again"
            )
            return [SendResult(message.id, lost) for message in messages]
        if line is self._line:
            stored = sum(result.ok for result in results)
            self._session.meter.add_confirmed(stored, time.monotonic() - began_s)
            self._session.is_troubled = any(
                result.error is not None and not is_permanent(result.error) for result in results
            )
        return results

    async def last_sequence(self) -> int | None:
        return None

    async def close(self) -> None:
        await self._client.leave(self._session)
        line, self._line = self._line, None
        if line is not None:
            if self._session.is_troubled:
                line.abandon()
            self._background.start(line.finish())
        await self._background.wait(_CLOSE_S)
