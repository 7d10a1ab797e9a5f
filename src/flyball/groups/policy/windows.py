"""How the queues that one member reads share its window."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flyball.groups.policy.group import Queue

_HEADROOM = 1.5  # a queue whose traffic grows is not slowed down until the next sharing


def share_window(window: int, received: Mapping[Queue, int]) -> dict[Queue, int]:
    """How many messages of each queue may wait at the member, from how many came lately.

    Ranked goals: a queue with all of the traffic can use the whole window; every queue has an equal share at
    least; little more than the window waits at the member in all. Only what is handed out counts for the window
    itself.

    >>> share_window(8, {("orders", 0): 90, ("orders", 1): 0, ("orders", 2): 10, ("orders", 3): 0})
    {('orders', 0): 8, ('orders', 1): 2, ('orders', 2): 2, ('orders', 3): 2}
    >>> share_window(2, {("orders", 0): 0, ("orders", 1): 0, ("orders", 2): 0})
    {('orders', 0): 1, ('orders', 1): 1, ('orders', 2): 1}
    """
    total = sum(received.values())
    least = math.ceil(window / len(received)) if received else 0
    return {
        queue: min(window, max(least, math.ceil(_HEADROOM * window * count / total) if total else 0))
        for queue, count in received.items()
    }
