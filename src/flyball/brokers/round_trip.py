"""Counts the round trip to the broker as part of the window.

A broker that holds back what exceeds its prefetch replaces each settled message by another, one for one and in
order; so the oldest that was settled and not yet replaced is answered by the next delivery. An empty queue never
answers: after twice the usual time and a little, the place is free.

>>> trip = RoundTrip()
>>> trip.settled(2, now_s=1.0)
>>> trip.arrived(now_s=1.02)
>>> trip.open(now_s=1.03), round(trip.mean_s, 3)
(1, 0.02)
>>> trip.open(now_s=1.1)  # the queue has no more
0
"""

from __future__ import annotations

from collections import deque

_UNKNOWN_S = 0.25  # how long the first answer is waited for
_NEW = 0.05  # share of a new one: the mean of about the last twenty
SLACK_S = 0.005


class RoundTrip:
    """Settled messages that the broker may still replace, and how long that takes."""

    __slots__ = ("_settled_s", "mean_s")

    def __init__(self) -> None:
        self._settled_s: deque[float] = deque()
        self.mean_s: float | None = None

    def settled(self, count: int, now_s: float) -> None:
        self._settled_s.extend([now_s] * count)

    def arrived(self, now_s: float) -> None:
        if self._settled_s:
            took_s = now_s - self._settled_s.popleft()
            self.mean_s = took_s if self.mean_s is None else self.mean_s + _NEW * (took_s - self.mean_s)

    def open(self, now_s: float) -> int:
        """How many are on their way."""
        settled_s = self._settled_s
        if settled_s:
            late_s = now_s - (_UNKNOWN_S if self.mean_s is None else 2.0 * self.mean_s + SLACK_S)
            while settled_s and settled_s[0] < late_s:
                settled_s.popleft()
        return len(settled_s)

    def forget(self) -> None:
        self._settled_s.clear()
