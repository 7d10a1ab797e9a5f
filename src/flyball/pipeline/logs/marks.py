"""Marks: entries of a log that are not events but say how far event time has come.

A mark promises that no event older than its time follows in its log; with a name, none of that pipeline. It starts
with a NUL byte, with which no JSON text can start, so that a reader tells it from an event by one look.
"""

from __future__ import annotations

import math

_PREFIX = b"\0mark "


def mark(event_time_s: float, source: str = "") -> bytes:
    """The body of a mark.

    >>> mark_time_s(mark(12.5)), mark_source(mark(12.5, "lyon"))
    (12.5, 'lyon')
    """
    return b" ".join([_PREFIX.rstrip(), repr(event_time_s).encode(), *([source.encode()] if source else [])])


def is_mark(body: bytes) -> bool:
    return body.startswith(_PREFIX)


def mark_time_s(body: bytes) -> float:
    """
    >>> mark_time_s(b"\\0mark soon")
    Traceback (most recent call last):
        ...
    ValueError: not a mark: its time is 'soon'
    """
    text = body.split(b" ")[1].decode(errors="backslashreplace")
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if math.isnan(time_s):
        raise ValueError(f"not a mark: its time is {text!r}")
    return time_s


def mark_source(body: bytes) -> str:
    """The pipeline that promises; empty: whoever writes the log."""
    return b"".join(body.split(b" ")[2:3]).decode()


END_OF_INPUT = mark(float("inf"))
"""Ends an input log: whatever was held back for events still to come can go."""
