"""Dead letters, and their channel: declared and opened when the first one comes."""

from __future__ import annotations

import asyncio

from flyball.brokers.port import Broker, Delivery, Message, Sender
from flyball.message import fit_message

ERROR, CHANNEL = "flyball-error", "flyball-channel"
_MAX_REASON = 1000


def to_plain_text(reason: str) -> str:
    """The reason as every broker and every log can carry it: bounded, and without lone surrogates.

    >>> to_plain_text("no file '\\udcff'")
    "no file '\\\\udcff'"
    """
    return reason[:_MAX_REASON].encode(errors="backslashreplace").decode()


def to_dead_letter(delivery: Delivery, reason: str) -> Message:
    """The message with the reason and its channel as headers, and without what no broker could carry.

    A text that a handler raised may hold anything, and other programs write headers that ours cannot.

    >>> delivery = Delivery(Message(b"x", headers={"n": 1}), "orders", tag=7)
    >>> to_dead_letter(delivery, "ValueError: no customer").headers
    {'flyball-error': 'ValueError: no customer', 'flyball-channel': 'orders', 'n': 1}
    """
    message = delivery.message
    own = {ERROR: to_plain_text(reason), CHANNEL: delivery.channel}
    others = {name: value for name, value in message.headers.items() if name not in own}
    return fit_message(
        Message(
            message.body,
            message.id,
            message.key,
            {**own, **others},
            message.event_time_s,
            message.content_type,
        )
    )


class DeadLetterChannel:
    """Stores messages that could not be handled; `log`: in a log, as their own channel is one."""

    def __init__(self, broker: Broker, channel: str, *, log: bool) -> None:
        self._broker = broker
        self._channel = channel
        self._log = log
        self._sender: Sender | None = None
        self._opening = asyncio.Lock()

    async def store(self, message: Message) -> None:
        """Store a message, or raise the `BrokerError` that prevented it."""
        async with self._opening:  # several messages may fail at the same time
            if self._sender is None:
                await self._broker.declare(self._channel, "log" if self._log else "queue")
                self._sender = await self._broker.sender(self._channel)
        (result,) = await self._sender.send_batch([message])
        if result.error is not None:
            raise result.error

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()
