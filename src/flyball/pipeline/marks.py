"""Marks: entries of a log that are not events but say how far event time has come.

A mark promises that no event older than its time follows in its log. It starts with a NUL byte, with which no
JSON text can start, so that a reader tells it from an event by one look.
"""

from __future__ import annotations

_PREFIX = b"\0mark "


def mark(event_time_s: float) -> bytes:
    """The body of a mark.

    >>> mark_time_s(mark(12.5))
    12.5
    """
    return _PREFIX + repr(event_time_s).encode()


def is_mark(body: bytes) -> bool:
    return body.startswith(_PREFIX)


def mark_time_s(body: bytes) -> float:
    return float(body[len(_PREFIX) :])


END_OF_INPUT = mark(float("inf"))
"""Ends an input log: whatever was held back for events still to come can go."""
