"""By machine room: only queues on brokers named room@broker, with a room of the given set.

Goals: nobody reads from other rooms; equal blocks in the order of the members. The remainder goes one each to the
first members.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flyball.groups.policy.broker_queue import BrokerQueue


def allocate_by_machine_room(
    queues: Sequence[BrokerQueue], members: Sequence[str], rooms: Collection[str]
) -> dict[str, list[BrokerQueue]]:
    """A broker whose name has not exactly one @ is in no room.

    >>> queues = [BrokerQueue("t", "r1@b", number) for number in range(5)]
    >>> found = allocate_by_machine_room(queues, ["m1", "m2"], {"r1"})
    >>> [[q.number for q in given] for given in found.values()]
    [[0, 1, 4], [2, 3]]
    """
    inside = [queue for queue in queues if queue.broker.count("@") == 1 and queue.broker.split("@")[0] in rooms]
    size, rest = divmod(len(inside), len(members))
    blocks = size * len(members)
    return {
        member: inside[index * size : (index + 1) * size]
        + inside[blocks + index : blocks + index + (index < rest)]
        for index, member in enumerate(members)
    }
