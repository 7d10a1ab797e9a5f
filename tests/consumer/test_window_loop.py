"""The loop on a real queue behind a slow network: what an empty queue teaches, and what it must not."""

from __future__ import annotations

import asyncio
import uuid

from flyball import Consumer
from flyball.brokers import Message, connect
from flyball.servers.ports import LOOPBACK
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode

ONE_WAY_S = 0.02


def test_the_wait_for_publishers_does_not_widen_the_window(rabbitmq: RabbitMqNode) -> None:
    """Publishers send a quarter of the goal: an acknowledgement is followed by a message only when one comes."""

    async def scenario(port: int) -> None:
        name = f"drought.{uuid.uuid4().hex[:8]}"

        async def handle(_: Message) -> None: ...

        async with await connect(rabbitmq.url) as broker:
            await broker.declare(name)
            sender = await broker.sender(name)
            consumer = Consumer(
                f"amqp://guest:guest@{LOOPBACK}:{port}/",
                queue=name,
                handler=handle,
                goal="rate=400",
                period_s=0.25,
            )
            async with consumer:
                took_s: list[float] = []
                while len(consumer.steps()) < 24:
                    await sender.send_batch([Message(b"now and then"), Message(b"and again")])
                    await asyncio.sleep(0.015)
                    if (residence_s := consumer.stats.residence_s) is not None:
                        took_s.append(residence_s)
                assert "the queue had no more" in consumer.status
                # the round trip, and not the 0.2 s that a place of such a window stays empty
                assert max(took_s[len(took_s) // 2 :]) < 4 * ONE_WAY_S

    with FaultProxy(rabbitmq.ports.amqp, delay_s=ONE_WAY_S) as proxy:
        asyncio.run(scenario(proxy.port))
