"""What was seen of each second: rate, residence time per message, how full the window was.

Counts and sums only; what they mean is decided in `goals` (`used_share`, `residence_of`).
"""

from __future__ import annotations

from collections import deque

from flyball.consumer.policy.goals import Look, Seen, published_per_s, residence_of, used_share
from flyball.histogram import Histogram

_TIMED = 1000  # messages of a sample, at least, whose times count for the quantiles


class Sensing:
    """Collects; `sample` hands over what came since the last one."""

    def __init__(self) -> None:
        self.handed = 0
        self.done = 0
        self._sampled = self._sampled_done = 0
        self._sampled_s: float | None = None
        self._sum_s = 0.0
        self._summed = 0
        self._timed = 0
        self._stride = 1
        self._ticks = 0
        self._full = 0
        self._looked: Look | None = None
        self._publish_per_s: float | None = None
        self._means_s: deque[float] = deque(maxlen=400)
        self._handling = Histogram()
        self._latency = Histogram()

    def finished(self, residence_s: float, latency_s: float | None) -> None:
        """A message was handled, so long after it was taken; `latency_s` counts from its event, if that is known.

        The mean takes in all of them. For quantiles a thousand a sample are plenty: of faster flows every nth.
        """
        self.done += 1
        self._sum_s += residence_s
        if self.done >= self._timed:
            self._timed = self.done + self._stride
            self._handling.add(residence_s)
            self._latency.add(residence_s if latency_s is None else latency_s)

    def add_wait(self, total_s: float) -> None:
        """Handled messages stayed in their places so long, all together, until they were acknowledged."""
        self._sum_s += total_s

    def tick(self, *, full: bool, round_trip_s: float) -> None:
        """A tick is over; `full`: no message was lacking, `round_trip_s` is what replacing a message takes."""
        self._ticks += 1
        self._full += full
        count, self._summed = self.done - self._summed, self.done
        if count:
            self._means_s.append(self._sum_s / count + round_trip_s)
            self._sum_s = 0.0

    def looked(self, now_s: float, depth: float) -> None:
        """So many wait in the queue at this moment."""
        before, self._looked = self._looked, Look(now_s, depth, self.handed)
        self._publish_per_s = None if before is None else published_per_s(before, self._looked)

    def sample(self, now_s: float, depth: float | None, beyond: float | None = None) -> Seen | None:
        """What was seen since the last sample; None where that is no time at all.

        `depth` messages waited at the last look, `beyond` of them where only a wider window could bring them.
        """
        since_s, self._sampled_s = self._sampled_s, now_s
        handed, self._sampled = self.handed - self._sampled, self.handed
        done, self._sampled_done = self.done - self._sampled_done, self.done
        if since_s is None or now_s - since_s < 1e-3:
            return None
        seen = Seen(
            now_s,
            now_s - since_s,
            handed / (now_s - since_s),
            residence_of(self._means_s),
            used_share(self._full, self._ticks, beyond),
            depth,
            self._latency.quantile(0.95),
            self._handling.quantile(0.95),
            done / (now_s - since_s),
            self._publish_per_s,
        )
        self._publish_per_s = None
        self._stride = max(1, done // _TIMED)
        self._ticks = self._full = 0
        self._means_s.clear()
        self._handling, self._latency = Histogram(), Histogram()
        return seen
