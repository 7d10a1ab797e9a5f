"""Averagely by circle: queue i goes to member i mod k.

Goal: loads of a topic differ by at most one, and neighbouring queues, often of one broker, go to different
members. What members had before does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball.groups.policy.broker_queue import BrokerQueue


def allocate_by_circle(queues: Sequence[BrokerQueue], members: Sequence[str]) -> dict[str, list[BrokerQueue]]:
    """
    >>> queues = [BrokerQueue("t", "b", number) for number in range(5)]
    >>> [[q.number for q in given] for given in allocate_by_circle(queues, ["m1", "m2"]).values()]
    [[0, 2, 4], [1, 3]]
    """
    return {member: list(queues[index :: len(members)]) for index, member in enumerate(members)}
