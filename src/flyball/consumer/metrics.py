"""Measure each second: rate, residence time per message, how full the window was.

Counts and sums only; `policy.goals` interprets them (`used_share`, `median_residence`).
"""

from __future__ import annotations

from collections import deque

from flyball.consumer.policy.goals import (
    ConsumerMeasurement,
    DepthReading,
    estimate_publish_rate,
    median_residence,
    used_share,
)
from flyball.histogram import Histogram

_LEAST_TIMED = 1000  # least number of messages of a sample whose times count for the quantiles


class WindowMetrics:
    """Collects what happens to messages; `sample` returns the measurement since the last one."""

    def __init__(self) -> None:
        self.handed = 0
        self.done = 0
        self._handed_at_sample = self._done_at_sample = 0
        self._sampled_s: float | None = None
        self._sum_s = 0.0
        self._done_at_tick = 0
        self._next_timed = 0
        self._stride = 1
        self._ticks = 0
        self._full = 0
        self._last_depth: DepthReading | None = None
        self._publish_per_s: float | None = None
        self._means_s: deque[float] = deque(maxlen=400)
        self._handling = Histogram()
        self._latency = Histogram()

    def add_finished(self, residence_s: float, latency_s: float | None) -> None:
        """Count a message that was handled; `latency_s` counts from its event, if that time is known.

        The mean includes every message. For quantiles a thousand a sample are enough: of faster flows every nth.
        """
        self.done += 1
        self._sum_s += residence_s
        if self.done >= self._next_timed:
            self._next_timed = self.done + self._stride
            self._handling.add(residence_s)
            self._latency.add(residence_s if latency_s is None else latency_s)

    def add_wait(self, total_s: float) -> None:
        """Add the total time for which handled messages stayed in their slots until they were acknowledged."""
        self._sum_s += total_s

    def tick(self, *, full: bool, round_trip_s: float) -> None:
        """End a tick; `full`: no message was lacking, `round_trip_s` is what replacing a message takes."""
        self._ticks += 1
        self._full += full
        count, self._done_at_tick = self.done - self._done_at_tick, self.done
        if count:
            self._means_s.append(self._sum_s / count + round_trip_s)
            self._sum_s = 0.0

    def add_depth(self, now_s: float, depth: float) -> None:
        """Add a reading of the queue's depth."""
        before, self._last_depth = self._last_depth, DepthReading(now_s, depth, self.handed)
        self._publish_per_s = None if before is None else estimate_publish_rate(before, self._last_depth)

    def sample(self, now_s: float, depth: float | None, beyond: float | None = None) -> ConsumerMeasurement | None:
        """The measurement since the last sample; None where no time has passed.

        `depth` messages waited at the last reading, `beyond` of them where only a wider window could bring them.
        """
        since_s, self._sampled_s = self._sampled_s, now_s
        handed, self._handed_at_sample = self.handed - self._handed_at_sample, self.handed
        done, self._done_at_sample = self.done - self._done_at_sample, self.done
        if since_s is None or now_s - since_s < 1e-3:
            return None
        measurement = ConsumerMeasurement(
            now_s,
            now_s - since_s,
            handed / (now_s - since_s),
            median_residence(self._means_s),
            used_share(self._full, self._ticks, beyond),
            depth,
            self._latency.quantile(0.95),
            self._handling.quantile(0.95),
            done / (now_s - since_s),
            self._publish_per_s,
        )
        self._publish_per_s = None
        self._stride = max(1, done // _LEAST_TIMED)
        self._ticks = self._full = 0
        self._means_s.clear()
        self._handling, self._latency = Histogram(), Histogram()
        return measurement
