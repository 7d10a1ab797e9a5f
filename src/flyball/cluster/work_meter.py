"""Counts what one client does; the totals are in its reports."""

from __future__ import annotations

import time
from collections.abc import Callable

from flyball.cluster.policy.work import Work


class WorkMeter:
    """Of one session; a sender or receiver counts, its process reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._confirmed = self._batches = self._delivered = 0
        self._waited_s = self._busy_s = 0.0
        self._busy_since_s: float | None = None

    def add_confirmed(self, count: int, waited_s: float) -> None:
        """A batch of which `count` messages were confirmed."""
        if count:
            self._confirmed += count
            self._batches += 1
            self._waited_s += waited_s

    def add_delivered(self, count: int) -> None:
        self._delivered += count

    def set_busy(self, is_busy: bool) -> None:
        """Whether deliveries are in work from now on."""
        now_s = self._clock()
        if self._busy_since_s is not None:
            self._busy_s += now_s - self._busy_since_s
        self._busy_since_s = now_s if is_busy else None

    def read(self) -> Work:
        now_s = self._clock()
        busy_s = self._busy_s + (0.0 if self._busy_since_s is None else now_s - self._busy_since_s)
        return Work(now_s, self._confirmed, self._batches, self._waited_s, self._delivered, busy_s)
