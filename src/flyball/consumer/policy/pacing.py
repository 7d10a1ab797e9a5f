"""Pacing: a token bucket between the window and the handlers, for an even flow.

The window is what a consumer's loop sets; a pace is another actuator. `Consumer` uses it where it is asked for by
name, `regulate` where a goal needs less than one message at a time. Messages are handed over at most at the target
rate, with a small burst to make up for late timers. It makes the rate even where the window is too coarse; the
price is that messages wait in the client, inside the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from flyball.errors import InvalidValue

Pacing: TypeAlias = Literal["off", "always", "below one"]
"""Whether messages are handed over at a pace: never, always, or where the window is less than one message."""

_MOST = 1.1  # highest pace as a multiple of the goal, to make up for late timers


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The state of a token bucket: `due_s` is when the next message may go; None: at once."""

    due_s: float | None = None


def take_token(
    state: TokenBucket, now_s: float, rate_per_s: float, burst_s: float = 0.02
) -> tuple[TokenBucket, float]:
    """Take the token of one message: the state after it, and how long to wait before handing it over.

    Unused tokens last for `burst_s` and no longer, so that a pause is not followed by a flood.

    >>> state, waits = TokenBucket(), []
    >>> for _ in range(3):
    ...     state, wait_s = take_token(state, 10.0, rate_per_s=100.0)
    ...     waits.append(round(wait_s, 3))
    >>> waits
    [0.0, 0.01, 0.02]
    """
    if not rate_per_s > 0.0:
        raise InvalidValue(f"rate_per_s must be > 0, got {rate_per_s}")
    due_s = now_s if state.due_s is None else max(state.due_s, now_s - burst_s)
    return TokenBucket(due_s + 1.0 / rate_per_s), max(0.0, due_s - now_s)


def pace_for_window(window: float, residence_s: float | None, goal_per_s: float | None) -> float | None:
    """The pace that stands for a window of less than one message; None: the window alone decides.

    By Little's law a window below 1 is one message at a time, window / residence time of them a second. A window
    that is closed for part of the time would give the same mean, but it lets any number of quick messages through
    while it is open. Until the residence time is known, the goal itself is the pace.

    `goal_per_s` is the rate of the goal (None: the goal is no rate). A pace beyond a tenth more than that would
    follow from a residence time that has changed since: the next sample corrects it.

    >>> pace_for_window(1.0, residence_s=None, goal_per_s=50.0)
    50.0
    >>> pace_for_window(0.2, residence_s=0.004, goal_per_s=50.0)
    50.0
    >>> round(pace_for_window(0.4, residence_s=0.004, goal_per_s=50.0))
    55
    >>> pace_for_window(1.5, residence_s=0.03, goal_per_s=50.0) is None
    True
    """
    if residence_s is None:
        return goal_per_s
    if window >= 1.0:
        return None
    pace = window / max(residence_s, 1e-6)
    return pace if goal_per_s is None else min(pace, _MOST * goal_per_s)


def carry_out(
    command: float, pacing: Pacing, residence_s: float | None, goal_per_s: float | None
) -> tuple[float, float | None]:
    """Turn a command into the mean of the whole windows to set, and the pace (None: as messages come).

    Where the pace always decides, the window is twice as wide, so that it does not.

    >>> carry_out(6.8, "off", 0.017, 400.0), carry_out(6.8, "always", 0.017, 400.0)
    ((6.8, None), (14.6, 400.0))
    >>> carry_out(6.8, "below one", 0.017, 400.0), carry_out(0.2, "below one", 0.004, 50.0)
    ((6.8, None), (1.0, 50.0))
    """
    if pacing == "always":
        return 2.0 * command + 1.0, goal_per_s
    pace = pace_for_window(command, residence_s, goal_per_s) if pacing == "below one" else None
    return (command, None) if pace is None else (1.0, pace)
