"""Averagely: contiguous blocks in the order of the members; the first n mod k members get one more.

Goal: loads of a topic differ by at most one. What members had before does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball.groups.policy.broker_queue import BrokerQueue


def allocate_averagely(queues: Sequence[BrokerQueue], members: Sequence[str]) -> dict[str, list[BrokerQueue]]:
    """
    >>> queues = [BrokerQueue("t", "b", number) for number in range(5)]
    >>> [[q.number for q in given] for given in allocate_averagely(queues, ["m1", "m2"]).values()]
    [[0, 1, 2], [3, 4]]
    """
    size, larger = divmod(len(queues), len(members))
    result, start = {}, 0
    for index, member in enumerate(members):
        end = start + size + (index < larger)
        result[member] = list(queues[start:end])
        start = end
    return result
