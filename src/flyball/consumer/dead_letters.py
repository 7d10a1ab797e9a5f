"""The channel of dead letters: declared and opened when the first one comes."""

from __future__ import annotations

from flyball.brokers.port import Broker, Message, Sender


class DeadLetterChannel:
    """Stores messages that could not be handled; `log`: in a log, as their own channel is one."""

    def __init__(self, broker: Broker, channel: str, *, log: bool) -> None:
        self._broker = broker
        self._channel = channel
        self._log = log
        self._sender: Sender | None = None

    async def store(self, message: Message) -> None:
        """Store a message, or raise the `BrokerError` that prevented it."""
        if self._sender is None:
            await self._broker.declare(self._channel, "log" if self._log else "queue")
            self._sender = await self._broker.sender(self._channel)
        (result,) = await self._sender.send_batch([message])
        if result.error is not None:
            raise result.error

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()
