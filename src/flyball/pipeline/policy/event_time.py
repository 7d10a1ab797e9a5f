"""Which event times are plausible: one wrong clock must not move the event time of all others."""

from __future__ import annotations

import math
from dataclasses import dataclass

_YEAR_1_S = -62_135_596_800.0
_YEAR_10000_S = 253_402_300_800.0


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Plausible times have a date in a calendar and, where `clock_s` is known, are at most `max_ahead_s` after it.

    `clock_s` is the time at which a batch was planned: a batch that is repeated is judged as it was before.
    """

    clock_s: float | None = None
    max_ahead_s: float = math.inf

    @property
    def first_s(self) -> float:
        return _YEAR_1_S

    @property
    def last_s(self) -> float:
        """The latest plausible time.

        >>> TimeLimits(1.7e9, 600.0).last_s, TimeLimits().last_s
        (1700000600.0, 253402300799.0)
        """
        in_calendar_s = _YEAR_10000_S - 1.0
        return in_calendar_s if self.clock_s is None else min(in_calendar_s, self.clock_s + self.max_ahead_s)

    @property
    def explanation(self) -> str:
        """Ends a sentence that begins with a time that is not plausible."""
        if self.clock_s is None or math.isinf(self.max_ahead_s):
            return "which is no time in seconds of the years 1 to 9999"
        return (
            "which is no time in seconds of the years 1 to 9999, or is more than max_ahead_s = "
            f"{self.max_ahead_s:g} s ahead of the clock of the pipeline"
        )

    def complaint(self, name: str, time_s: float | None) -> str:
        """Why a time is not plausible, in words.

        >>> TimeLimits().complaint("event_time", 1.7e12)
        'event_time is 1700000000000.0, which is no time in seconds of the years 1 to 9999'
        """
        if time_s is None:
            return f"{name} is null: without a time, an event has no place in the order"
        return f"{name} is {time_s!r}, {self.explanation}"
