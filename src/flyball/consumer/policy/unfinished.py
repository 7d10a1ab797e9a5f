"""Messages of a log that a program has and has not finished: what a commit covers, and what a program forgets.

A queue learns from an acknowledgement that a message is done. A log only learns an offset now and then, so a
program that reads one says itself when a message has left the window; a commit says it, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Position: TypeAlias = tuple[str | None, int | None, int | None]
"""Topic, partition and offset of a message."""

_PATIENCE_S = 5.0
_LONGER = 10.0  # times the residence time that is known: so long may one message take


def covered(
    in_flight: Iterable[Position], topic: str | None, partition: int | None, offset: int
) -> list[Position]:
    """The messages that a commit of `offset` covers: those of the partition before it.

    >>> covered([("orders", 0, 6), ("orders", 0, 7), ("orders", 0, 8), ("orders", 1, 2)], "orders", 0, 8)
    [('orders', 0, 6), ('orders', 0, 7)]
    """
    return [
        position
        for position in in_flight
        if position[:2] == (topic, partition) and position[2] is not None and position[2] < offset
    ]


def is_forgetful(full_s: float, residence_s: float | None) -> bool:
    """Whether a program that asks for messages seems to forget to say which ones are done.

    `full_s` is for how long its window has been full without a single message being done, `residence_s` how long
    messages took so far (None: none was ever done).

    >>> is_forgetful(4.0, None), is_forgetful(6.0, None)
    (False, True)
    >>> is_forgetful(6.0, residence_s=1.5)  # its messages take long
    False
    """
    return full_s >= max(_PATIENCE_S, _LONGER * (residence_s or 0.0))
