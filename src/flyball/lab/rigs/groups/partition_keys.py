"""A key for each partition of a Kafka topic, so that messages can be sent to a certain one."""

from __future__ import annotations

import uuid

from flyball.brokers import Message
from flyball.brokers.port import Broker


async def partition_keys(broker: Broker, partitions: int) -> list[bytes]:
    """Find a key for each partition, by sending messages into a topic that is deleted then."""
    log = f"keys-{uuid.uuid4().hex[:8]}"
    await broker.declare(log, "log", partitions=partitions)
    sender = await broker.sender(log)
    keys: dict[int | None, bytes] = {}
    number = 0
    while len(keys) < partitions:
        tried = [b"key %d" % each for each in range(number, number + 8 * partitions)]
        number += len(tried)
        results = await sender.send_batch([Message(b"", key=key) for key in tried])
        keys |= {result.partition: key for result, key in zip(results, tried, strict=True) if result.ok}
    await sender.close()
    await broker.delete(log)
    return [keys[partition] for partition in range(partitions)]
