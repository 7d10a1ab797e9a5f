"""Waiting for what is away: a disk, an address, a broker. When to try again, and when to say so."""

from __future__ import annotations

from dataclasses import dataclass, replace

_FIRST_S, _LONGEST_S = 0.05, 5.0
_REPORT_AFTER_S = 1.0
_REPORT_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Since when every attempt has failed, how many there were, and when it was last reported."""

    since_s: float
    tries: int = 0
    reported_s: float | None = None


@dataclass(frozen=True, slots=True)
class NextTry:
    """`pause_s`: how long to wait for it. `report`: whether to say now that this part waits."""

    pause_s: float
    report: bool


def after_failure(outage: Outage | None, now_s: float) -> tuple[Outage, NextTry]:
    """Pauses are doubled up to a few seconds. A locked file that is free at once is not worth a word.

    >>> outage, following = after_failure(None, 10.0)
    >>> following
    NextTry(pause_s=0.05, report=False)
    >>> outage, following = after_failure(outage, 11.5)
    >>> following, after_failure(outage, 20.0)[1].report, after_failure(outage, 80.0)[1].report
    (NextTry(pause_s=0.1, report=True), False, True)
    """
    before = Outage(now_s) if outage is None else outage
    pause_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(before.tries, 32))
    due_s = before.since_s + _REPORT_AFTER_S if before.reported_s is None else before.reported_s + _REPORT_EVERY_S
    report = now_s >= due_s
    after = replace(before, tries=before.tries + 1, reported_s=now_s if report else before.reported_s)
    return after, NextTry(pause_s, report)
