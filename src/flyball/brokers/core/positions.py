"""The position of a group in a log, when messages are settled in any order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flyball.brokers.port import Delivery

Partition = tuple[str, int]
"""(log, partition)"""


def settled_positions(ends: Mapping[Partition, int], *unsettled: Iterable[Delivery]) -> dict[Partition, int]:
    """The offset up to which everything handed out is settled, for each partition in `ends`.

    `ends` is the offset after the last one handed out; what is still unsettled limits its partition. That
    is the contiguous prefix of *delivered* offsets: offsets have gaps, so counting up would get stuck at one.

    >>> from flyball.brokers.port import Message
    >>> open_ = Delivery(Message(b""), "log", tag=1, partition=0, offset=7)
    >>> settled_positions({("log", 0): 10, ("log", 1): 4}, [open_])
    {('log', 0): 7, ('log', 1): 4}
    """
    positions = dict(ends)
    for deliveries in unsettled:
        for delivery in deliveries:
            partition = (delivery.channel, delivery.partition or 0)
            offset = delivery.offset or 0
            if offset < positions.get(partition, offset):
                positions[partition] = offset
    return positions
