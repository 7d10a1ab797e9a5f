"""May an unfinished message go back to its queue?

A queue that counts deliveries (RabbitMQ's quorum queues) drops or dead-letters a message that was delivered too
often. Whoever gives messages back that nobody has failed on, because they were only parked or because a consumer
stops, must not use that up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Returnable:
    """What is known of an unfinished delivery: did it come back before, and how many deliveries there can be."""

    redelivered: bool
    attempt: int | None = None
    delivery_limit: int | None = None


def may_return(unfinished: Returnable) -> bool:
    """Whether an unfinished message may go back to the queue, or should rather be kept and finished.

    Once is free. A message that came back before is finished here, if the queue counts deliveries: returning it
    again would bring it nearer to the limit at which the queue drops it.

    >>> may_return(Returnable(redelivered=False)), may_return(Returnable(True)), may_return(Returnable(True, 2))
    (True, True, False)
    >>> may_return(Returnable(False, attempt=1, delivery_limit=2))  # within one of its limit
    False
    """
    if unfinished.attempt is None:
        return True  # the queue does not count
    if unfinished.delivery_limit is not None and unfinished.attempt >= unfinished.delivery_limit - 1:
        return False
    return not unfinished.redelivered


def give_back_beyond(kept: int, parked: Iterable[T], may: Callable[[T], bool]) -> tuple[deque[T], list[T]]:
    """What stays parked and what goes back: all beyond `kept` that may, the newest first.

    >>> give_back_beyond(2, [1, 2, 3, 4, 5], may=lambda n: n != 4)
    (deque([1, 4]), [5, 3, 2])
    """
    stay, back = deque(parked), []
    held: deque[T] = deque()
    while stay and len(stay) + len(held) > kept:
        newest = stay.pop()
        if may(newest):
            back.append(newest)
        else:
            held.appendleft(newest)
    stay.extend(held)
    return stay, back
