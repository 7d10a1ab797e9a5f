"""A broker that restarts while queues change hands: nothing is lost, and repeats have the same id."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flyball.servers.rabbitmq import RabbitMqNode
from tests.groups.readers.members import GroupUnderTest, Handled, members, until

COUNT = 400


def test_a_broker_restarts_during_a_hand_over(own_rabbitmq: RabbitMqNode, tmp_path: Path) -> None:
    node = own_rabbitmq
    group = GroupUnderTest(node.url, tmp_path / "groups.db", queues=2)

    async def scenario() -> None:
        handled = Handled()
        async with members(group, handled, "a", "b", work_s=0.01) as (a, b):
            await a.readers.take(group.queue(0), 1)
            await a.readers.take(group.queue(1), 1)
            for number in range(2):
                await group.send(number, range(COUNT))
            await until(lambda: len(handled.of(0)) >= 50)
            await asyncio.to_thread(node.kill)
            starting = asyncio.create_task(asyncio.to_thread(node.start))
            await a.readers.release(group.queue(0), 5.0)
            await b.readers.take(group.queue(0), 2)
            await starting
            await until(lambda: all(set(handled.of(number)) == set(range(COUNT)) for number in range(2)))
            assert handled.by("b"), "the queue has its new owner"
            await until(lambda: not a.readers.receiver.in_flight and not b.readers.receiver.in_flight)

    asyncio.run(scenario())
