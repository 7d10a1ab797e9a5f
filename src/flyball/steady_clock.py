"""Wall-clock time that never goes back."""

from __future__ import annotations

import time


class SteadyClock:
    """Seconds since 1970: the wall clock is read once, then the monotonic clock is added.

    So times have a date, and do not jump when the machine's clock is set.
    """

    def __init__(self) -> None:
        self._epoch_s = time.time() - time.monotonic()

    def now(self) -> float:
        return self._epoch_s + time.monotonic()

    def at(self, monotonic_s: float) -> float:
        """The time at which the monotonic clock showed `monotonic_s`."""
        return self._epoch_s + monotonic_s
