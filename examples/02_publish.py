"""Publish durably: accepted messages survive a crash, and the publisher tunes itself to the broker.

The broker here is a file, so the example needs no server. For RabbitMQ or Kafka change the URL, nothing else.
"""

# ruff: noqa: T201 – an example prints

import asyncio

from flyball import Message, Publisher, connect

URL = "sqlite:///broker.db"


async def main() -> None:
    async with Publisher(URL, channel="alerts", outbox="outbox.db", declare="queue") as publisher:
        handle = await publisher.publish(b"first alert", id="alert-0", urgency=0)
        print("safe in the outbox:", handle.accepted)
        await handle.wait_confirmed()
        print("the broker has it: ", handle.is_confirmed)

        burst = await publisher.publish_many(Message(b"alert %d" % n, id=f"alert-{n}") for n in range(1, 1000))
        await asyncio.gather(*(each.wait_confirmed() for each in burst))
        stats = publisher.stats
        print(f"accepted {stats.accepted}, confirmed {stats.confirmed}, waiting {stats.waiting}")

    async with await connect(URL) as broker:
        receiver = await broker.receiver("alerts", window=1000)
        ids: set[str] = set()
        while len(ids) < 1000:
            deliveries = await receiver.receive(1000)
            ids |= {delivery.message.id for delivery in deliveries}
            await receiver.ack(*deliveries)
        print("received", len(ids), "different messages")


asyncio.run(main())
