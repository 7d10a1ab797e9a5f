"""A program that publishes to two targets, one of which takes small bodies only, to be killed at any moment.

It says which messages were accepted. Those whose id has "large" in it are refused by the first target.

python books_client.py OUTBOX CHANNEL FIRST SECOND REQUIRED RUN COUNT
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from flyball import Message, Publisher
from flyball.store import enqueue

SMALL = 200


def body_of(id: str) -> bytes:
    return (id.encode() * 100)[: 2 * SMALL if "large" in id else SMALL // 2]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def enqueue_one(outbox: str, channel: str, id: str) -> None:
    """In a transaction of its own, as an application does; a publisher that knows the limit would refuse it."""
    connection = sqlite3.connect(outbox, timeout=60.0)
    enqueue(connection, channel, Message(body_of(id), id))
    connection.commit()
    connection.close()


async def main(outbox: str, channel: str, first: str, second: str, required: int, run: str, count: int) -> None:
    targets = [f"{first}?max_body_bytes={SMALL}", second]
    publisher = Publisher(targets=targets, required_confirms=required, channel=channel, outbox=outbox)
    async with publisher:
        for number in range(count):
            id = f"{run}-{number:06d}" + ("-large" if number % 5 == 0 else "")
            if "large" in id:
                await asyncio.to_thread(enqueue_one, outbox, channel, id)
            else:
                await publisher.publish(body_of(id), id=id)
            say(f"accepted {id}")
        while publisher._relay._outbox.pending()[0]:  # what was enqueued last may not be found yet
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    outbox, channel, first, second, required, run, count = sys.argv[1:]
    asyncio.run(main(outbox, channel, first, second, int(required), run, int(count)))
