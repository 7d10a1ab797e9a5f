"""Clients of a cluster that send and receive all the time, and an account of every message."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from flyball import Message
from flyball.brokers.port import BrokerError, Receiver, Sender

BATCH = 10


class Traffic:
    """`stop` ends the sending, and returns when every confirmed message was received."""

    def __init__(self) -> None:
        self.confirmed: set[str] = set()
        self.received: Counter[str] = Counter()
        self._sent = 0
        self._is_sending = True

    def start(self, senders: Sequence[Sender], receivers: Sequence[Receiver]) -> None:
        self._senders = [asyncio.create_task(self._send(sender)) for sender in senders]
        self._receivers = [asyncio.create_task(self._receive(receiver)) for receiver in receivers]

    async def wait_for_more(self, count: int) -> None:
        """Wait until so many more messages were confirmed: there is traffic around whatever happens."""
        wanted = len(self.confirmed) + count
        while len(self.confirmed) < wanted:
            for task in (*self._senders, *self._receivers):
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._is_sending = False
        await asyncio.gather(*self._senders)
        await asyncio.gather(*self._receivers)
        assert self.confirmed <= set(self.received)

    async def _send(self, sender: Sender) -> None:
        """As a publisher does: what was not confirmed is sent again, with the same id."""
        while self._is_sending:
            ids = [f"m{number}" for number in range(self._sent, self._sent + BATCH)]
            self._sent += BATCH
            while ids:
                results = await sender.send_batch([Message(b"x", id) for id in ids])
                self.confirmed |= {result.id for result in results if result.ok}
                ids = [result.id for result in results if not result.ok]
                await asyncio.sleep(0.02)

    async def _receive(self, receiver: Receiver) -> None:
        while self._is_sending or not self.confirmed <= set(self.received):
            try:
                deliveries = await receiver.receive(timeout_s=0.2)
                self.received.update(delivery.message.id for delivery in deliveries)
                await receiver.ack(*deliveries)
            except BrokerError:
                await asyncio.sleep(0.1)  # its node is away: what was in flight comes again
