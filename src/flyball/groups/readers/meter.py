"""What is measured at one queue: arrivals, handling times, and for which part of the time it was busy."""

from __future__ import annotations

from flyball.control.filters import ewma_over_time
from flyball.groups.policy.reports import QueueLoad
from flyball.histogram import Histogram

_SHORTEST_S = 0.5  # a sample over less says little
_TIME_CONSTANT_S = 5.0
_LEAST_TIMED = 200  # handling times of which the quantile is worth something


class SharedTime:
    """The member's time, shared equally by the messages in flight, of whichever queue.

    While n messages are in flight, each gets 1/n of the time: what it waits for others is theirs. So the shares of
    all messages add up to the time in which the member was busy.
    """

    def __init__(self, now_s: float) -> None:
        self._in_flight = 0
        self._now_s = now_s
        self._share_s = 0.0

    def share_s(self, now_s: float) -> float:
        """What a message would have got that has been in flight from the beginning."""
        if self._in_flight:
            self._share_s += max(0.0, now_s - self._now_s) / self._in_flight
        self._now_s = now_s
        return self._share_s

    def add(self, count: int, now_s: float) -> float:
        """Messages are handed out, or end (`count` < 0); return the share as of now."""
        share_s = self.share_s(now_s)
        self._in_flight += count
        return share_s


class QueueMeter:
    """Messages of one queue from being handed out until they are settled."""

    def __init__(self, now_s: float) -> None:
        self.in_flight = 0
        self.received = 0
        self._sampled_s = self._busy_since_s = now_s
        self._arrivals = self._settled = 0
        self._work_s = self._busy_s = 0.0
        self._times, self._last_times = Histogram(), Histogram()
        self._load = QueueLoad()

    def begin(self, count: int, now_s: float) -> None:
        """Count messages that were handed out."""
        if not self.in_flight:
            self._busy_since_s = now_s
        self.in_flight += count
        self.received += count
        self._arrivals += count

    def end(self, since_s: float, work_s: float, now_s: float) -> None:
        """Count a message that was settled: handed out at `since_s`, it had `work_s` of the member's time."""
        self._leave(now_s)
        self._settled += 1
        self._work_s += work_s
        self._times.add(now_s - since_s)

    def drop(self, now_s: float) -> None:
        """Forget a message that went back without having been settled here."""
        self._leave(now_s)

    def _leave(self, now_s: float) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._busy_s += now_s - self._busy_since_s

    def load(self, now_s: float) -> QueueLoad:
        """What was measured lately, averaged over some seconds."""
        elapsed_s = now_s - self._sampled_s
        if elapsed_s < _SHORTEST_S:
            return self._load
        if self.in_flight:
            self._busy_s += now_s - self._busy_since_s
            self._busy_since_s = now_s
        before = self._load

        def averaged(average: float | None, value: float) -> float:
            return ewma_over_time(average, value, elapsed_s, _TIME_CONSTANT_S)

        service_s = before.service_s
        if self._settled:
            service_s = averaged(service_s, self._work_s / self._settled)
        if self._times.count >= _LEAST_TIMED:
            self._times, self._last_times = Histogram(), self._times
        times = self._last_times if self._last_times.count else self._times
        self._load = QueueLoad(
            arrival_per_s=averaged(before.arrival_per_s, self._arrivals / elapsed_s) if self.received else None,
            service_s=service_s,
            busy=averaged(before.busy, min(1.0, self._busy_s / elapsed_s)) if self.received else None,
            residence_p99_s=times.quantile(0.99),
        )
        self._sampled_s, self._arrivals, self._settled = now_s, 0, 0
        self._work_s = self._busy_s = 0.0
        return self._load
