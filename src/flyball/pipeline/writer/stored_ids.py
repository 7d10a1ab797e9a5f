"""Which messages of a batch a log has already: asked when an attempt before this one stored some of them."""

from __future__ import annotations

import asyncio
from collections import Counter

from flyball.brokers import Broker
from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.policy.appending import WriteTask

_LEAST_SPAN, _WIDER = 256, 8


async def find_stored(broker: Broker, url: str, log: str, task: WriteTask, expected: int) -> Counter[str]:
    """The ids of the task's batch, read backwards from the end of each partition.

    A partition is in order, so a message of an earlier batch ends it; so does having found `expected` of them,
    the most there can be.
    """
    found: Counter[str] = Counter()
    for partition in range(await asyncio.to_thread(_partitions, url, log)):
        first, end = await broker.bounds(log, partition)
        span = max(_LEAST_SPAN, expected)
        while end > first and found.total() < expected:
            begin = max(first, end - span)
            before = False
            async for records in broker.read(log, partition, begin, end):
                for record in records:
                    batch = task.batch_of(record.message.id, record.message.headers)
                    if batch == task.batch:
                        found[record.message.id] += 1
                    elif batch is not None and batch < task.batch:
                        before = True
            if before:
                break
            end, span = begin, span * _WIDER
    return found


def _partitions(url: str, log: str) -> int:
    with open_log_reader(url, log) as reader:
        return reader.partitions()
