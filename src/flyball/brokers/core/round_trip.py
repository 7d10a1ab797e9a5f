"""Counts the round trip to the broker as part of the window.

A broker that holds back what exceeds its prefetch replaces each settled message by another, one for one and in
order; so the oldest that was settled and not yet replaced is answered by the next delivery. An empty queue never
answers: after twice the usual time and a little, the slot counts as free. Its answer may still come, when a
moment of stalling was all; so it is remembered for a second, or the late answers would be taken for those of
messages that were settled since, and more than the window would be under way from then on.

>>> trip = RoundTrip()
>>> trip.add_settled(2, now_s=1.0)
>>> trip.add_arrivals(1, now_s=1.02, more=True)
>>> trip.outstanding(now_s=1.03), round(trip.mean_s, 3)
(1, 0.02)
>>> trip.outstanding(now_s=1.1)  # the queue has no more, or the answer is late
0
>>> trip.add_settled(1, now_s=1.1)
>>> trip.add_arrivals(1, now_s=1.11, more=True)  # it was late
>>> trip.outstanding(now_s=1.11)
1
>>> trip.outstanding(now_s=1.11, most=0)
0

While publishers send less than the window could take, what an acknowledgement waits for is the next message, not
the broker. So the mean grows only while the broker has more than it may send, as far as can be seen from here, and
never beyond what the broker takes to answer a question:

>>> trip = RoundTrip()
>>> trip.add_probe(0.013)
>>> trip.add_settled(1, now_s=1.0)
>>> trip.add_arrivals(1, now_s=1.2, more=False)
>>> trip.mean_s
0.013
"""

from __future__ import annotations

from collections import deque

_UNKNOWN_S = 0.25  # how long the first answer is waited for
_NEW = 0.05  # share of a new one: the mean of about the last twenty
_ASKED = 0.5  # share of a question's answer where nothing else was learned
_LONGER, _LONGER_S = 1.1, 0.0005  # by how much an acknowledgement's answer may take longer than a question's
_REMEMBERED_S = 1.0
SLACK_S = 0.005


class Unanswered:
    """Settled messages without an answer, in batches of one time each, oldest first."""

    __slots__ = ("batches", "count")

    def __init__(self) -> None:
        self.batches: deque[tuple[float, int]] = deque()  # when, and how many
        self.count = 0

    def add(self, since_s: float, count: int) -> None:
        self.batches.append((since_s, count))
        self.count += count

    def take(self, most: int) -> tuple[float, int]:
        """Up to `most` of the oldest batch: since when, and how many."""
        since_s, count = self.batches.popleft()
        if count > most:
            self.batches.appendleft((since_s, count - most))
            count = most
        self.count -= count
        return since_s, count


class RoundTrip:
    """Settled messages that the broker may still replace, and how long that takes."""

    __slots__ = ("_late", "_learned", "_longest_s", "_young", "mean_s")

    def __init__(self) -> None:
        self._young, self._late = Unanswered(), Unanswered()
        self._learned = False  # from deliveries, since a question was last answered
        self._longest_s: float | None = None
        self.mean_s: float | None = None

    def add_settled(self, count: int, now_s: float) -> None:
        if count:
            self._young.add(now_s, count)

    def add_arrivals(self, count: int, now_s: float, *, more: bool) -> None:
        """Count messages that arrived; `more`: the broker has more than it may send, so it answered at once."""
        while count and (waiting := self._late if self._late.count else self._young).count:
            since_s, answered = waiting.take(count)
            count -= answered
            elapsed_s = max(0.0, now_s - since_s)
            if self.mean_s is None:
                self.mean_s = elapsed_s
            elif more or elapsed_s < self.mean_s:  # one stall is not a new round trip; many long ones in a row are
                share = 1.0 - (1.0 - _NEW) ** answered
                self.mean_s += share * (min(elapsed_s, self._patience_s) - self.mean_s)
                self._learned = True
                if self._longest_s is not None:
                    self.mean_s = min(self.mean_s, self._longest_s)

    def add_probe(self, elapsed_s: float) -> None:
        """Add the time until the broker answered a question, which is asked about once a second."""
        self._longest_s = _LONGER * elapsed_s + _LONGER_S
        if self.mean_s is None:
            self.mean_s = elapsed_s
        elif not self._learned:  # the queue is empty, or the round trip is far from what it was
            self.mean_s += _ASKED * (elapsed_s - self.mean_s)
        self.mean_s = min(self.mean_s, self._longest_s)
        self._learned = False

    @property
    def _patience_s(self) -> float:
        return _UNKNOWN_S if self.mean_s is None else 2.0 * self.mean_s + SLACK_S

    def outstanding(self, now_s: float, most: int | None = None) -> int:
        """How many replacements are on their way, as far as is known.

        `most` is how many there can be, by what the broker may send in all; of the oldest, those beyond it will
        never be answered (their consumer has ended), and must not stand for younger ones.
        """
        young, late = self._young, self._late
        late_s, gone_s = now_s - self._patience_s, now_s - _REMEMBERED_S
        while young.count and young.batches[0][0] < late_s:
            late.add(*young.take(young.count))
        while late.count and late.batches[0][0] < gone_s:
            late.take(late.count)
        while most is not None and (beyond := late.count + young.count - most) > 0:
            (late if late.count else young).take(beyond)
        return young.count

    def reset(self) -> None:
        self._young, self._late = Unanswered(), Unanswered()
