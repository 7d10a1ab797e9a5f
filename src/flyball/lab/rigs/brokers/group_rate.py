"""How fast a consumer group reads a log: the same measurement for every broker that has logs."""

from __future__ import annotations

import time
from uuid import uuid4

from flyball.brokers import connect


async def group_rate(url: str, log: str, count: int, *, at_once: int, body_bytes: int) -> float:
    """Measure messages a second of a new group that reads `count` messages and acknowledges each batch.

    The clock starts with the first batch: joining a group takes a second on either side and is not measured.
    """
    async with await connect(url) as broker:
        receiver = await broker.subscribe(log, f"bench-{uuid4().hex[:8]}", window=2 * at_once, start="earliest")
        first = await receiver.receive(at_once)
        await receiver.ack(*first)
        began, got, size = time.perf_counter(), 0, 0
        while got < count - len(first):
            batch = await receiver.receive(at_once)
            for delivery in batch:
                size += len(delivery.message.body)
            await receiver.ack(*batch)
            got += len(batch)
        rate = got / (time.perf_counter() - began)
        assert size == got * body_bytes
        await receiver.close()
    return rate
