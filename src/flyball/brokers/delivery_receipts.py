"""Delivery receipts: a consumer reports to a publisher which messages were handled, over a channel of their own.

A publisher that keeps messages until their receipt (`Publisher(…, receipts=…)`) reads that channel. A
consumer sends the receipt when it is done with a message, and acknowledges the message after that:

    receipts = await Receipts.open(broker, "orders.receipts")
    async for delivery in receiver:
        handle(delivery.message)
        await receipts.send(delivery.message.id)
        await receiver.ack(delivery)

When a message is delivered again, its receipt is sent again: the publisher may not have received the first one.
"""

from __future__ import annotations

import json

from flyball.brokers.port import Broker, Message, Sender

_MOST_IDS = 1000


class Receipts:
    """Sends receipts; `send` returns when the broker has them."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    @classmethod
    async def open(cls, broker: Broker, channel: str) -> Receipts:
        await declare(broker, channel)
        return cls(await broker.sender(channel))

    async def send(self, *ids: str) -> None:
        """Report messages as handled. Many at once cost little more than one."""
        groups = [ids[at : at + _MOST_IDS] for at in range(0, len(ids), _MOST_IDS)]
        for result in await self._sender.send_batch([Message(encode(group)) for group in groups]):
            if result.error is not None:
                raise result.error


async def declare(broker: Broker, channel: str) -> None:
    """Declare the channel: a queue where the broker has queues, else a log."""
    await broker.declare(channel, "queue" if broker.capabilities.queues else "log")


def encode(ids: tuple[str, ...]) -> bytes:
    return json.dumps(ids).encode()


def decode(body: bytes) -> list[str]:
    """The ids of a receipt; none where it is something else.

    >>> decode(encode(("a", "b"))), decode(b"hello"), decode(b"[1]")
    (['a', 'b'], [], [])
    >>> decode(b'["\\\\ud800"]'), decode(b"[" * 100_000)
    ([], [])
    """
    try:
        ids = json.loads(body)
        if isinstance(ids, list) and all(isinstance(id, str) for id in ids):
            "".join(ids).encode()  # no store takes what UTF-8 cannot encode
            return ids
    except (ValueError, RecursionError):
        pass
    return []
