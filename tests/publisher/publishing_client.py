"""A program that publishes numbered messages and says which ones were accepted, to be killed at any moment.

python publishing_client.py URL CHANNEL OUTBOX RUN FIRST COUNT
"""

from __future__ import annotations

import asyncio
import sys

from flyball import Publisher
from flyball.testing.crash import body_of


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def main(url: str, channel: str, outbox: str, run: str, first: int, count: int) -> None:
    async with Publisher(url, channel=channel, outbox=outbox) as publisher:
        say("ready")

        async def publish(numbers: range) -> None:
            for number in numbers:
                id = f"{run}-{number:08d}"
                await publisher.publish(body_of(id), id=id)
                say(f"accepted {id}")

        await asyncio.gather(*(publish(range(first + part, first + count, 8)) for part in range(8)))
        await publisher.drain()
        say("drained")


if __name__ == "__main__":
    url, channel, outbox, run, first, count = sys.argv[1:]
    asyncio.run(main(url, channel, outbox, run, int(first), int(count)))
