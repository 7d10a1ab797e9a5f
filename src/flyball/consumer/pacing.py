"""Pacing: a token bucket between the window and the handlers, for whoever wants an even flow.

The window is the knob that a consumer regulates; pacing is another one, asked for by name. Messages are handed to
handlers at most at the target rate, with a small burst to make up for late timers. It makes the rate even where
the window's plant is coarse; the price is that messages wait in the client, inside the window.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Bucket:
    """`due_s` is when the next message may go; None: at once."""

    due_s: float | None = None


def take(state: Bucket, now_s: float, rate_per_s: float, burst_s: float = 0.02) -> tuple[Bucket, float]:
    """The state after one message, and how long to wait before handing it over.

    What was not used is kept for `burst_s` and no longer, so that a pause is not followed by a flood.

    >>> state, waits = Bucket(), []
    >>> for _ in range(3):
    ...     state, wait_s = take(state, 10.0, rate_per_s=100.0)
    ...     waits.append(round(wait_s, 3))
    >>> waits
    [0.0, 0.01, 0.02]
    """
    if not rate_per_s > 0.0:
        raise InvalidValue(f"pacing needs a rate above 0, got {rate_per_s}")
    due_s = now_s if state.due_s is None else max(state.due_s, now_s - burst_s)
    return Bucket(due_s + 1.0 / rate_per_s), max(0.0, due_s - now_s)
