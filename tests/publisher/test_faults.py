"""A publisher that keeps the order, and a broker that is killed. Other faults: tests/faults."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flyball import OrderingConfig, Publisher
from flyball.brokers import connect
from flyball.servers.rabbitmq import RabbitMqNode


async def arrived(url: str, queue: str, expected: set[str]) -> list[str]:
    """Ids in the order of arrival, repeats included, until all that is expected came."""
    found: list[str] = []
    async with await connect(f"{url}?dedup_ids=0") as broker:
        receiver = await broker.receiver(queue, window=5000)
        while not expected <= set(found):
            got = await receiver.receive(1000)
            found += [delivery.message.id for delivery in got]
            await receiver.ack(*got)
        await receiver.close()
        await broker.delete(queue)
    return found


def test_a_killed_broker_and_the_order_of_an_ordered_publisher(own_rabbitmq: RabbitMqNode, tmp_path: Path) -> None:
    node = own_rabbitmq

    async def main() -> None:
        async with Publisher(
            node.amqp_url,
            channel="ordered",
            outbox=tmp_path / "o.db",
            declare="queue",
            ordering=OrderingConfig(),
            close_timeout_s=600.0,
        ) as publisher:
            ids: list[str] = []
            kills = 0
            while kills < 2 or len(ids) < 3000:
                handle = await publisher.publish(b"", id=f"{len(ids)}")
                ids.append(handle.id)
                if kills < 2 and publisher.stats.confirmed > 1000 * (kills + 1):
                    kills += 1
                    await asyncio.to_thread(node.kill)
                    await asyncio.to_thread(node.start)
            await publisher.drain()
        found = await arrived(node.amqp_url, "ordered", set(ids))
        assert list(dict.fromkeys(found)) == ids

    asyncio.run(main())
