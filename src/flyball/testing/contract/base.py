"""The hooks of a subclass of the contract, and the helpers of its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest import SkipTest

from flyball.brokers import Broker, Delivery, Message, Receiver, SendResult, connect
from flyball.brokers.port import Kind
from flyball.testing.contract.messages import fresh_name

Scenario = Callable[[Broker], Awaitable[None]]


class ContractBase:
    """Base of the contract tests. Channel names are unique, so they can run on a shared server."""

    arrives_within_s = 30.0
    """Longest wait for an expected message (a group's first join takes seconds on some brokers)."""
    quiet_s = 0.3
    """How long to wait before concluding that no message comes."""
    full_queue_blocks = True
    """False for a broker whose queues have no byte limit of their own."""

    def url(self) -> str:
        raise NotImplementedError("a subclass must define url(self) -> str, the URL of the broker")

    def declare_options(self, kind: Kind) -> dict[str, Any]:  # noqa: ARG002  a hook
        """Further arguments of `declare` for channels of this kind."""
        return {}

    def write_unreadable(self, channel: str) -> int:  # noqa: ARG002  a hook
        """Write messages that cannot be decoded, as programs do that know nothing of Flyball; their number."""
        raise SkipTest("no other program can write to this broker")

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            async with await connect(self.url()) as broker:
                await scenario(broker)

        asyncio.run(main())

    def kinds(self, broker: Broker) -> list[Kind]:
        kinds: list[Kind] = []
        if broker.capabilities.queues:
            kinds.append("queue")
        if broker.capabilities.logs:
            kinds.append("log")
        return kinds

    def need(self, condition: bool, reason: str) -> None:
        if not condition:
            raise SkipTest(reason)

    async def channel(self, broker: Broker, kind: Kind, **options: Any) -> str:
        name = fresh_name()
        await broker.declare(name, kind, **{**self.declare_options(kind), **options})
        return name

    async def open(self, broker: Broker, kind: Kind, channel: str, window: int = 100) -> Receiver:
        """Open a receiver of all messages in the channel: of the queue, or of a group from the beginning."""
        if kind == "queue":
            return await broker.receiver(channel, window=window)
        return await broker.subscribe(channel, "readers", window=window, start="earliest")

    async def collect(self, receiver: Receiver, count: int, ack: bool = True) -> list[Delivery]:
        """Receive the next `count` deliveries, or as many as came in time."""
        got: list[Delivery] = []
        while len(got) < count:
            batch = await receiver.receive(count - len(got), timeout_s=self.arrives_within_s)
            if not batch:
                break
            got += batch
            if ack:
                await receiver.ack(*batch)
        return got

    async def send(self, broker: Broker, channel: str, messages: Sequence[Message]) -> list[SendResult]:
        sender = await broker.sender(channel)
        results = await sender.send_batch(messages)
        await sender.close()
        assert [result.error for result in results] == [None] * len(messages)
        return results

    async def expect_nothing(self, receiver: Receiver) -> None:
        extra = await receiver.receive(100, timeout_s=self.quiet_s)
        assert extra == []
