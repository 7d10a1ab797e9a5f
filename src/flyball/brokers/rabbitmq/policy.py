"""The receiver's decisions: how many messages RabbitMQ may send ahead, and which may go back to the queue; pure.

The window is kept in the client, and the prefetch of a consumer is fixed when the consumer begins. So the prefetch
follows the window in steps: wide enough for small changes to be free, not so wide that much is parked. Which rule
applies depends on the queue and on whether the round trip to the broker counts as part of the window.

A queue that counts deliveries (RabbitMQ's quorum queues) drops or dead-letters a message that was delivered too
often. Returning a message on which no handler failed, because it was only parked or because the consumer stops,
must not use up its deliveries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

IDLE_S = 1.0
"""Parked messages return to the queue when none was handed out for this long."""

_MAX_PREFETCH = 65_535  # AMQP's prefetch has 16 bits


@dataclass(frozen=True, slots=True)
class DeliveryCounting:
    """Whether a queue counts deliveries, and how many deliveries of a message it allows (None: no limit).

    `known` False: a policy that sets a limit may apply, and the broker has not reported it yet.
    """

    counts: bool
    limit: int | None = None
    known: bool = True


def limits_by_default(version: str) -> bool:
    """Whether quorum queues of this version of RabbitMQ have a delivery limit unless they are declared without.

    >>> [limits_by_default(version) for version in ("3.10.8", "4.3.6", "")]
    [False, True, False]
    """
    return _is_4_or_newer(version)


def switches_by_priority(version: str) -> bool:
    """Whether a quorum queue with a single active consumer passes to one that comes with a higher priority."""
    return _is_4_or_newer(version)


def _is_4_or_newer(version: str) -> bool:
    major = version.partition(".")[0]
    return major.isdecimal() and int(major) >= 4


# --- prefetch -------------------------------------------------------------------------------------------------


def target_prefetch(
    window: int, current: int, *, peak: int, last_peak: int, counting: DeliveryCounting, round_trip: bool
) -> int:
    """The prefetch that the consumer should have; `current` 0: there is no consumer yet.

    `peak` and `last_peak` are the widest windows of this second and of the last; `round_trip`: the window includes
    what is on its way.

    >>> classic, quorum = DeliveryCounting(counts=False), DeliveryCounting(counts=True)
    >>> [target_prefetch(8, 0, peak=8, last_peak=8, counting=kind, round_trip=trip)
    ...  for kind, trip in ((classic, False), (classic, True), (quorum, True))]
    [10, 12, 10]
    >>> target_prefetch(0, 10, peak=8, last_peak=8, counting=quorum, round_trip=False)  # a pause ends no consumer
    10
    """
    if window == 0 and (round_trip or counting.counts):
        return current
    if counting.counts:
        return counted_prefetch(window, current, peak, counting.limit)
    if round_trip:
        return round_trip_prefetch(window, current, max(peak, last_peak))
    return stepped_prefetch(window, current)


def coarse_step(window: int) -> int:
    """The smallest of 32, 128, 512 … that is the window and a quarter or more.

    >>> [coarse_step(window) for window in (1, 26, 27, 100, 103, 60_000)]
    [32, 32, 128, 128, 128, 65535]
    """
    step = 32
    while step < window + window // 4:
        step *= 4
    return min(step, _MAX_PREFETCH)


def stepped_prefetch(window: int, current: int) -> int:
    """The prefetch where neither the round trip nor deliveries are counted.

    >>> stepped_prefetch(10, current=0), stepped_prefetch(13, current=12), stepped_prefetch(9, current=32)
    (12, 32, 32)
    >>> stepped_prefetch(20, current=2048)  # far too many would be parked
    32
    """
    if current == 0:
        return min(window + window // 4, _MAX_PREFETCH)
    coarse = coarse_step(window)
    if window > current or coarse * 16 <= current:
        return coarse
    return current


def round_trip_prefetch(window: int, current: int, peak: int) -> int:
    """The prefetch where the round trip counts: at most one window is parked, and small changes are free.

    `peak` is the widest window lately: a window that goes up and down does not end consumers.

    One more than the window, at least: what is parked shows that the broker has more. A window of 1 parks nothing.

    >>> round_trip_prefetch(7, current=0, peak=7), round_trip_prefetch(9, current=11, peak=9)
    (11, 11)
    >>> round_trip_prefetch(11, current=11, peak=11), round_trip_prefetch(4, current=19, peak=4)
    (17, 6)
    >>> round_trip_prefetch(1, current=1, peak=1)
    1
    """
    if (window < current or window == current == 1) and current <= max(2 * peak, 2):
        return current
    return min(window + window * 3 // 5, _MAX_PREFETCH)


def counted_prefetch(window: int, current: int, peak: int, limit: int | None) -> int:
    """The prefetch where the queue counts deliveries: a quarter is parked, after small changes at most a window.

    Where the limit is so low that nothing may go back, nothing is parked.

    >>> counted_prefetch(8, current=0, peak=8, limit=None), counted_prefetch(9, current=10, peak=9, limit=20)
    (10, 10)
    >>> counted_prefetch(4, current=10, peak=4, limit=None), counted_prefetch(8, current=0, peak=8, limit=2)
    (5, 8)
    """
    parks = limit is None or may_return(redelivered=False, attempt=1, limit=limit)
    if window <= current <= (2 * peak if parks else peak):
        return current
    return min(window + (window // 4 if parks else 0), _MAX_PREFETCH)


def fixed_prefetch(window: int, current: int = 0) -> int:
    """The prefetch of a consumer that keeps it for life; if it differs from `current`, another should begin.

    Consumers with a priority are not exchanged on their channel: the broker would pass the queue on.

    >>> [fixed_prefetch(window, current) for window, current in ((8, 0), (9, 10), (11, 10), (2, 10))]
    [10, 10, 22, 4]
    """
    if current == 0:
        return min(window + window // 4, _MAX_PREFETCH) or 1
    if window <= current <= 4 * max(window, 1):
        return current
    return min(2 * max(window, 1), _MAX_PREFETCH)


def has_room(unacknowledged: int, prefetch: int, peak: int) -> bool:
    """Whether at most one window is parked once a new consumer has received its whole prefetch.

    >>> has_room(unacknowledged=6, prefetch=10, peak=8), has_room(unacknowledged=7, prefetch=10, peak=8)
    (True, False)
    """
    return unacknowledged <= max(2 * peak - prefetch, 0)


# --- returning messages ---------------------------------------------------------------------------------------


def may_return(*, redelivered: bool, attempt: int | None = None, limit: int | None = None) -> bool:
    """Whether an unfinished message may go back to its queue; otherwise it should be kept and finished here.

    Once is free. A message that came back before is finished here if the queue counts deliveries (`attempt` is not
    None): returning it again would bring it nearer to the limit at which the queue drops it.

    >>> may_return(redelivered=False), may_return(redelivered=True), may_return(redelivered=True, attempt=2)
    (True, True, False)
    >>> may_return(redelivered=False, attempt=1, limit=2)  # within one of its limit
    False
    """
    if attempt is None:
        return True  # the queue does not count
    if limit is not None and attempt >= limit - 1:
        return False
    return not redelivered


def split_parked(keep: int, parked: Iterable[T], may_go: Callable[[T], bool]) -> tuple[deque[T], list[T]]:
    """What stays parked and what goes back: everything beyond `keep` that may, the newest first.

    >>> split_parked(2, [1, 2, 3, 4, 5], may_go=lambda n: n != 4)
    (deque([1, 4]), [5, 3, 2])
    """
    older, back = deque(parked), []
    pinned: deque[T] = deque()
    while older and len(older) + len(pinned) > keep:
        newest = older.pop()
        if may_go(newest):
            back.append(newest)
        else:
            pinned.appendleft(newest)
    older.extend(pinned)
    return older, back


def is_idle(since_hand_out_s: float) -> bool:
    """Whether parked messages have waited long enough to go back, if the handlers do not need them.

    >>> is_idle(0.2), is_idle(1.5)
    (False, True)
    """
    return since_hand_out_s >= IDLE_S


def is_window_full(in_flight: int, window: int) -> bool:
    """Whether the handlers are busy: parked messages are their next work, not surplus.

    >>> is_window_full(3, 3), is_window_full(2, 3), is_window_full(0, 0)
    (True, False, False)
    """
    return window > 0 and in_flight >= window


def others_starve(ready: int, consumers: int, *, consuming: bool) -> bool:
    """Whether another consumer of the queue has nothing to do; `consuming`: one of `consumers` is ours.

    >>> [others_starve(ready, consumers, consuming=True) for ready, consumers in ((0, 2), (0, 1), (5, 2))]
    [True, False, False]
    """
    return ready == 0 and consumers > consuming
