"""Moves messages between nodes, each confirmed at the target before the source forgets it.

How fast is decided by `policy.exchange_flow`, for each pair of nodes by itself. What fails leaves messages where
they are, or at both nodes with the same id. A transfer ends after a while, so that the next one is planned from
what the queues have by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.port import BrokerError, Receiver, Sender
from flyball.cluster.node_connections import NodeConnections
from flyball.cluster.policy.exchange_flow import ExchangeFlow, FlowState
from flyball.cluster.policy.state import Pair

_LAST_S = 0.5
"""A queue that gives nothing for so long is empty."""
_LONGEST_S = 10.0
_WINDOW = 2000
"""Messages that are on their way at a time, at most."""


class Mover:
    """`flow` decides the rate; the state of each pair is kept from one transfer to the next."""

    def __init__(
        self,
        nodes: NodeConnections,
        flow: ExchangeFlow | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes, self._flow, self._clock = nodes, flow or ExchangeFlow(), clock
        self._states: dict[Pair, FlowState] = {}

    def rate_per_s(self, pair: Pair) -> float | None:
        """How fast messages of this pair may move; None: none ever did."""
        state = self._states.get(pair)
        return None if state is None else state.rate_per_s

    async def move(self, pair: Pair, source_url: str, target_url: str, channel: ChannelSpec, count: int) -> int:
        """Move up to `count` messages; return how many moved. The nodes have the names of `pair`."""
        source = await self._nodes.open(source_url, (channel,))
        target = await self._nodes.open(target_url, (channel,))
        sender = await target.sender(channel.name)
        try:
            # A new one each time: it remembers what it acknowledged, and a message may come back.
            receiver = await source.receiver(channel.name, window=min(count, _WINDOW))
            try:
                return await self._move_rounds(pair, sender, receiver, count)
            finally:
                await receiver.close()
        finally:
            with suppress(BrokerError):
                await sender.close()

    async def _move_rounds(self, pair: Pair, sender: Sender, receiver: Receiver, count: int) -> int:
        flow, state = self._flow, self._flow.begin(self._states.get(pair))
        end_s, moved = self._clock() + _LONGEST_S, 0
        while moved < count:
            began_s = self._clock()
            wanted = min(flow.count(state), count - moved, _WINDOW)
            done = await self._move_round(sender, receiver, wanted)
            moved += done
            now_s = self._clock()
            if done < wanted:
                break
            self._states[pair] = state = flow.update(state, done, now_s - began_s)
            if now_s >= end_s:
                break
            await asyncio.sleep(flow.rest_s(state, now_s - began_s))
        return moved

    async def _move_round(self, sender: Sender, receiver: Receiver, wanted: int) -> int:
        """Fewer than wanted: the source is empty, or the target does not take them, and the rest goes back."""
        done = 0
        while done < wanted:
            deliveries = await receiver.receive(wanted - done, timeout_s=_LAST_S)
            if not deliveries:
                break
            results = await sender.send_batch([delivery.message for delivery in deliveries])
            stored = [one for one, result in zip(deliveries, results, strict=True) if result.ok]
            await receiver.ack(*stored)
            done += len(stored)
            if len(stored) < len(deliveries):
                break
        return done
