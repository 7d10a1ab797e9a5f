"""A consumer that holds 200 messages a second by itself, and goes on to another goal while it runs.

The handler takes 20 ms a message. Nobody tells the consumer so: it measures how long each message occupies a place
of its window, and by Little's law 200/s of 20 ms need about four slots. One message is bad: it is tried again,
and then put aside as a dead letter. A real program gives the URL of its broker instead of `memory://`.
"""

# ruff: noqa: T201 – an example prints

import asyncio

from flyball import Consumer, Message, RetryPolicy, connect

URL = "memory://example"


async def handle(message: Message) -> None:
    if message.body == b"13":
        raise ValueError("an unlucky number")
    await asyncio.sleep(0.02)


async def main() -> None:
    async with await connect(URL) as broker:
        await broker.declare("orders")
        sender = await broker.sender("orders")
        await sender.send_batch([Message(b"%d" % number) for number in range(1000)])

        consumer = Consumer(
            URL, queue="orders", handler=handle, goal="rate=200", retries=RetryPolicy(retries=1, first_s=0.05)
        )
        async with consumer:
            await asyncio.sleep(2.5)
            print("three to eight places for 200/s:", 3 < consumer.window < 8)
            consumer.goal = "rate=50"
            await asyncio.sleep(1.5)
            print("a quarter of that for 50/s:     ", 0.7 < consumer.window < 2)
            consumer.goal = "capacity"  # as fast as the handlers can take it
            while consumer.stats.acked < 1000:
                await asyncio.sleep(0.1)

        stats = consumer.stats
        print(f"{stats.acked} settled, {stats.dead_lettered} of them as a dead letter")
        print("left in the queue:", await broker.depth("orders"))


asyncio.run(main())
