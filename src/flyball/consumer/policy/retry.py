"""What becomes of a message whose handler failed.

A message is tried again *here*, in its place of the window, after a waiting time that doubles: going back to the
queue would use up one of its deliveries where the queue counts them, and other consumers would fail on it too.
When the tries are used up it goes to the dead-letter channel. Nothing is ever dropped: where the dead letter
cannot be stored, the message stays ours and is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from flyball.errors import InvalidValue

Fate: TypeAlias = Literal["retry", "dead-letter"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`retries` further tries after the first; the nth waits up to first_s·2ⁿ⁻¹, at most longest_s."""

    retries: int = 3
    first_s: float = 0.1
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InvalidValue(f"retries is a whole number from 0, got {self.retries!r}")
        if not 0.0 < self.first_s <= self.longest_s:
            raise InvalidValue(
                f"retries wait from first_s to longest_s, both above 0, got {self.first_s} and {self.longest_s}"
            )


@dataclass(frozen=True, slots=True)
class Verdict:
    fate: Fate
    delay_s: float = 0.0
    reason: str = ""


def after_failure(policy: RetryPolicy, failures: int, error: str, delay_s: float) -> Verdict:
    """What to do with a message whose handler failed for the `failures`-th time; `delay_s` before the next try.

    >>> policy = RetryPolicy(retries=2)
    >>> [after_failure(policy, n, "KeyError: 'id'", 0.1 * n).fate for n in (1, 2, 3)]
    ['retry', 'retry', 'dead-letter']
    """
    if failures > policy.retries:
        tries = f"{failures} tries" if failures > 1 else "1 try"
        return Verdict("dead-letter", reason=f"{error} (after {tries})")
    return Verdict("retry", delay_s, error)
