"""Counts the round trip to the broker as part of the window.

A broker that holds back what exceeds its prefetch replaces each settled message by another, one for one and in
order; so the oldest that was settled and not yet replaced is answered by the next delivery. An empty queue never
answers: after twice the usual time and a little, the place counts as free. Its answer may still come, when a
moment of stalling was all; so it is remembered for a second, or the late answers would be taken for those of
messages that were settled since, and more than the window would be under way from then on.

>>> trip = RoundTrip()
>>> trip.settled(2, now_s=1.0)
>>> trip.arrived(now_s=1.02)
>>> trip.open(now_s=1.03), round(trip.mean_s, 3)
(1, 0.02)
>>> trip.open(now_s=1.1)  # the queue has no more, or the answer is late
0
>>> trip.settled(1, now_s=1.1)
>>> trip.arrived(now_s=1.11)  # it was late
>>> trip.open(now_s=1.11)
1
>>> trip.open(now_s=1.11, most=0)
0
"""

from __future__ import annotations

from collections import deque

_UNKNOWN_S = 0.25  # how long the first answer is waited for
_NEW = 0.05  # share of a new one: the mean of about the last twenty
_REMEMBERED_S = 1.0
SLACK_S = 0.005


class RoundTrip:
    """Settled messages that the broker may still replace, and how long that takes."""

    __slots__ = ("_late", "_settled_s", "mean_s")

    def __init__(self) -> None:
        self._settled_s: deque[float] = deque()
        self._late = 0  # how many, from the left, are not waited for any more
        self.mean_s: float | None = None

    def settled(self, count: int, now_s: float) -> None:
        self._settled_s.extend([now_s] * count)

    def arrived(self, now_s: float, *, lacking: bool = False) -> None:
        """A message came; `lacking`: one was waited for, so a publisher's pause may be what took so long."""
        if not self._settled_s:
            return
        took_s = now_s - self._settled_s.popleft()
        self._late = max(0, self._late - 1)
        if lacking and (self.mean_s is None or took_s > self.mean_s):
            return
        if self.mean_s is None:
            self.mean_s = took_s
        else:  # one stall is not a new round trip; many long ones in a row are
            self.mean_s += _NEW * (min(took_s, self._patience_s) - self.mean_s)

    @property
    def _patience_s(self) -> float:
        return _UNKNOWN_S if self.mean_s is None else 2.0 * self.mean_s + SLACK_S

    def open(self, now_s: float, most: int | None = None) -> int:
        """How many are on their way, as far as is known.

        `most` is how many there can be, by what the broker may send in all; of the oldest, those beyond it will
        never be answered (their consumer has ended), and must not stand for younger ones.
        """
        settled_s, late_s, gone_s = self._settled_s, now_s - self._patience_s, now_s - _REMEMBERED_S
        while settled_s and settled_s[0] < gone_s:
            settled_s.popleft()
            self._late = max(0, self._late - 1)
        while self._late < len(settled_s) and settled_s[self._late] < late_s:
            self._late += 1
        while most is not None and len(settled_s) > most:
            settled_s.popleft()
            self._late = max(0, self._late - 1)
        return len(settled_s) - self._late

    def forget(self) -> None:
        self._settled_s.clear()
        self._late = 0
