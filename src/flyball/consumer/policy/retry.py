"""Decide what to do with a message whose handler failed, and whether its pause before a retry needs a slot.

A message is tried again *here*, after a pause that doubles: going back to the queue would use up one of its
deliveries where the queue counts them, and other consumers would fail on it too. When the retries are used up it
goes to the dead-letter channel. No message is ever dropped: where the dead letter cannot be stored, the message
stays unacknowledged and storing it is tried again.

During its pause it occupies no slot of the window, or a few bad messages would stop all others. There are three
exceptions, in which it keeps its slot: a consumer of one message at a time, which is how order is asked for; more
than `_MOST_PAUSING` of them; and while more than half of all messages fail, which no message is to blame for. Then
the slots that are kept slow the consumer down, so that an outage makes few dead letters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flyball.control.filters import ewma
from flyball.errors import InvalidValue

_MOST_PAUSING = 1000
_KEEP_SHARE = 0.98  # part of the old share of failures that stays: about the last fifty messages count
_OUTAGE = 0.5  # share of failures above which no single message is to blame

FailureAction: TypeAlias = Literal["retry", "dead-letter"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`retries` further attempts after the first; the nth waits up to first_s·2ⁿ⁻¹, at most longest_s."""

    retries: int = 3
    first_s: float = 0.1
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        if type(self.retries) is not int or self.retries < 0:
            raise InvalidValue(f"retries must be an integer >= 0, got {self.retries!r}")
        if not 0.0 < self.first_s <= self.longest_s < math.inf:
            raise InvalidValue(
                "first_s must be > 0 and <= longest_s, which must be finite, got "
                f"first_s={self.first_s}, longest_s={self.longest_s}"
            )


@dataclass(frozen=True, slots=True)
class FailureDecision:
    """What follows from a failure; a retry waits for `delay_s`."""

    action: FailureAction
    delay_s: float = 0.0
    reason: str = ""


def decide_after_failure(policy: RetryPolicy, failures: int, error: str, delay_s: float) -> FailureDecision:
    """Decide about a message whose handler failed for the `failures`-th time; `delay_s` before the next attempt.

    >>> policy = RetryPolicy(retries=2)
    >>> [decide_after_failure(policy, n, "KeyError: 'id'", 0.1 * n).action for n in (1, 2, 3)]
    ['retry', 'retry', 'dead-letter']
    """
    if failures > policy.retries:
        tries = f"{failures} tries" if failures > 1 else "1 try"
        return FailureDecision("dead-letter", reason=f"{error} (after {tries})")
    return FailureDecision("retry", delay_s, error)


def update_failing_share(share: float, failed: bool) -> float:
    """Update the share of messages that fail, after the first attempt of one.

    >>> share = 0.0
    >>> for failed in [False, True] * 100 + [True] * 20:
    ...     share = update_failing_share(share, failed)
    >>> round(share, 2)
    0.66
    """
    return ewma(share, float(failed), _KEEP_SHARE)


def slots_for_pauses(pausing: int, failing_share: float, *, one_at_a_time: bool) -> int:
    """How many slots are added to the window for the messages that pause.

    >>> slots_for_pauses(30, 0.05, one_at_a_time=False), slots_for_pauses(30, 0.05, one_at_a_time=True)
    (30, 0)
    >>> slots_for_pauses(3000, 0.05, one_at_a_time=False), slots_for_pauses(30, 0.9, one_at_a_time=False)
    (1000, 0)
    """
    if one_at_a_time or failing_share > _OUTAGE:
        return 0
    return min(pausing, _MOST_PAUSING)
