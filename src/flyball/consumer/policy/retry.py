"""Decide what to do with a message whose handler failed.

A message is tried again *here*, in its slot of the window, after a waiting time that doubles: going back to the
queue would use up one of its deliveries where the queue counts them, and other consumers would fail on it too.
When the retries are used up it goes to the dead-letter channel. No message is ever dropped: where the dead letter
cannot be stored, the message stays unacknowledged and storing it is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from flyball.errors import InvalidValue

FailureAction: TypeAlias = Literal["retry", "dead-letter"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`retries` further attempts after the first; the nth waits up to first_s·2ⁿ⁻¹, at most longest_s."""

    retries: int = 3
    first_s: float = 0.1
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InvalidValue(f"retries must be an integer >= 0, got {self.retries!r}")
        if not 0.0 < self.first_s <= self.longest_s:
            raise InvalidValue(
                f"first_s must be > 0 and <= longest_s, got first_s={self.first_s}, longest_s={self.longest_s}"
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
