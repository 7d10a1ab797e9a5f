"""Consistent hash: a queue belongs to the first point of a ring at or behind its own hash.

Goal: few queues move when members come and go, without any memory of what was before. Balance is that of chance.
Each member has `virtual_nodes` points, the first four bytes of MD5("member-replica"), as in RocketMQ.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence

from flyball.errors import InvalidValue
from flyball.groups.policy.broker_queue import BrokerQueue

VIRTUAL_NODES = 10


def allocate_by_hash(
    queues: Sequence[BrokerQueue], members: Sequence[str], virtual_nodes: int = VIRTUAL_NODES
) -> dict[str, list[BrokerQueue]]:
    """Without virtual nodes no member gets anything."""
    if virtual_nodes < 0:
        raise InvalidValue(f"virtual_nodes must be an integer >= 0, got {virtual_nodes}")
    ring = {_hash(f"{member}-{replica}"): member for member in members for replica in range(virtual_nodes)}
    points = sorted(ring)
    result: dict[str, list[BrokerQueue]] = {member: [] for member in members}
    if points:
        for queue in queues:
            point = bisect_left(points, _hash(_text(queue)))
            result[ring[points[point % len(points)]]].append(queue)
    return result


def _text(queue: BrokerQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.number}]"


def _hash(text: str) -> int:
    # Not for security: RocketMQ's ring is defined by MD5. Java, too, writes "?" for half a character.
    return int.from_bytes(hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).digest()[:4], "big")
