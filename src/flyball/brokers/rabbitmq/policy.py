"""How many messages RabbitMQ may send ahead, for a window that is kept in the client; pure.

The prefetch of a consumer is fixed when it begins, so it follows the window in steps: wide enough for small
changes to be free, not so wide that much is parked. Which rule holds depends on the queue and on what the window
means.
"""

from __future__ import annotations

from flyball.brokers.rabbitmq.returning import Returnable, may_return

_MOST = 65_535  # AMQP's prefetch has 16 bits


def coarse_prefetch(window: int) -> int:
    """The smallest of 32, 128, 512 … that is the window and a quarter or more.

    >>> [coarse_prefetch(window) for window in (1, 26, 27, 100, 103, 60_000)]
    [32, 32, 128, 128, 128, 65535]
    """
    step = 32
    while step < window + window // 4:
        step *= 4
    return min(step, _MOST)


def wanted_prefetch(window: int, current: int) -> int:
    """The prefetch the consumer should have; `current` 0: there is no consumer yet.

    >>> wanted_prefetch(10, current=0), wanted_prefetch(13, current=12), wanted_prefetch(9, current=32)
    (12, 32, 32)
    >>> wanted_prefetch(20, current=2048)  # far too many would be parked
    32
    """
    if current == 0:
        return min(window + window // 4, _MOST)
    coarse = coarse_prefetch(window)
    if window > current or coarse * 16 <= current:
        return coarse
    return current


def snug_prefetch(window: int, current: int, peak: int) -> int:
    """The prefetch where the round trip counts: at most one window is parked, and small changes are free.

    `peak` is the widest window lately: a window that goes up and down does not end consumers.

    One more than the window, at least: what is parked shows that the broker has more. A window of 1 parks nothing.

    >>> snug_prefetch(7, current=0, peak=7), snug_prefetch(9, current=11, peak=9)
    (11, 11)
    >>> snug_prefetch(11, current=11, peak=11), snug_prefetch(4, current=19, peak=4), snug_prefetch(1, 1, 1)
    (17, 6, 1)
    """
    if (window < current or window == current == 1) and current <= max(2 * peak, 2):
        return current
    return min(window + window * 3 // 5, _MOST)


def counted_prefetch(window: int, current: int, peak: int, limit: int | None) -> int:
    """The prefetch where the queue counts deliveries: a quarter is parked, after small changes at most a window.

    Where the limit is so low that nothing may go back, nothing is parked.

    >>> counted_prefetch(8, current=0, peak=8, limit=None), counted_prefetch(9, current=10, peak=9, limit=20)
    (10, 10)
    >>> counted_prefetch(4, current=10, peak=4, limit=None), counted_prefetch(8, current=0, peak=8, limit=2)
    (5, 8)
    """
    parks = limit is None or may_return(Returnable(False, 1, limit))
    if window <= current <= (2 * peak if parks else peak):
        return current
    return min(window + (window // 4 if parks else 0), _MOST)
