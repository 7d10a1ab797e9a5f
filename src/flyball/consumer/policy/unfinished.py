"""Messages of a log that a program has and has not finished: which of them a commit covers.

An acknowledgement tells a queue that a message is done. A log only gets an offset now and then, so a program that
reads one calls `done` when a message has left the window; a commit says it, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Position: TypeAlias = tuple[str | None, int | None, int | None]
"""Topic, partition and offset of a message."""

_LEAST_FULL_S = 5.0
_LONGEST = 10.0  # longest time of a message as a multiple of the mean residence time


def positions_before(
    in_flight: Iterable[Position], topic: str | None, partition: int | None, offset: int
) -> list[Position]:
    """The messages that a commit of `offset` covers: those of the partition before the offset.

    >>> positions_before([("orders", 0, 6), ("orders", 0, 7), ("orders", 0, 8), ("orders", 1, 2)], "orders", 0, 8)
    [('orders', 0, 6), ('orders', 0, 7)]
    """
    return [
        position
        for position in in_flight
        if position[:2] == (topic, partition) and position[2] is not None and position[2] < offset
    ]


def lacks_done_calls(full_s: float, residence_s: float | None) -> bool:
    """Whether a program that asks for messages seems not to report which ones are done.

    `full_s` is for how long its window has been full without a single message being done, `residence_s` how long
    messages took so far (None: none was ever done).

    >>> lacks_done_calls(4.0, None), lacks_done_calls(6.0, None)
    (False, True)
    >>> lacks_done_calls(6.0, residence_s=1.5)  # its messages take long
    False
    """
    return full_s >= max(_LEAST_FULL_S, _LONGEST * (residence_s or 0.0))
