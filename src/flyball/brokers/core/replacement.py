"""How long a slot of the window stays empty between a settled message and the next, while the broker has more.

A broker that sends ahead replaces a settled message within its round trip (`round_trip`). Any other is asked: the
acknowledgement is written, then the next message is claimed or fetched, and meanwhile the slot is empty. That
time is part of what a message costs: rate = window / (handling + replacement).

>>> replacement = Replacement()
>>> replacement.add_empty(2, now_s=1.0)
>>> replacement.fill(2, requested=2, now_s=1.003)
>>> round(replacement.mean_s, 4)
0.003

When the broker has less than was asked for, the slots that are left wait for a publisher. That says nothing:

>>> replacement.add_empty(1, now_s=2.0)
>>> replacement.fill(0, requested=1, now_s=2.001)
>>> replacement.fill(1, requested=1, now_s=2.5)
>>> round(replacement.mean_s, 4)
0.003

Nor does a slot that is empty because the window has become narrower:

>>> replacement.add_empty(1, now_s=3.0)
>>> replacement.limit(0)
>>> replacement.fill(1, requested=1, now_s=3.05)
>>> round(replacement.mean_s, 4)
0.003
"""

from __future__ import annotations

from flyball.brokers.core.round_trip import SLACK_S, Unanswered

_MEMORY = 100  # messages, about, over which the mean goes


class Replacement:
    """Empty slots that wait for their next message, and how long that takes on average (0: not known yet)."""

    __slots__ = ("_count", "_waiting", "mean_s")

    def __init__(self) -> None:
        self._waiting = Unanswered()
        self._count = 0
        self.mean_s = 0.0

    def add_empty(self, count: int, now_s: float) -> None:
        """Add slots that have become empty and are to be filled again."""
        if count > 0:
            self._waiting.add(now_s, count)

    def limit(self, slots: int) -> None:
        """Forget all but the given number of empty slots: no more are to be filled."""
        while (beyond := self._waiting.count - max(0, slots)) > 0:
            self._waiting.take(beyond)

    def fill(self, count: int, *, requested: int, now_s: float) -> None:
        """The broker was asked for `requested` messages and had `count`."""
        left = count
        while left > 0 and self._waiting.count:
            since_s, replaced = self._waiting.take(left)
            left -= replaced
            self._learn(max(0.0, now_s - since_s), replaced)
        if count < requested:
            self._waiting = Unanswered()

    def _learn(self, elapsed_s: float, count: int) -> None:
        """A mean of all at first, of the last ones later. One that took very long is no new mean; many are."""
        elapsed_s = min(elapsed_s, 2.0 * self.mean_s + SLACK_S)
        self._count = min(_MEMORY, self._count + count)
        self.mean_s += min(1.0, count / self._count) * (elapsed_s - self.mean_s)
