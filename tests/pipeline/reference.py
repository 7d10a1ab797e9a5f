"""What the pipeline must find, computed in plain Python over the same events."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW_S = 10


@dataclass(frozen=True)
class Expected:
    events_in: int
    results: int
    filtered: int
    dead_letter: int
    alerts: dict[float, float]
    """start of the window → largest load"""


def expected(bodies: Iterable[bytes]) -> Expected:
    """Drop performance events of 92.126.10.0/24; alert where the largest load in 92.126.11.0/24 exceeds 2."""
    counts: Counter[str] = Counter()
    largest: dict[float, float] = {}
    for body in bodies:
        event = _parsed(body)
        if event is None:
            counts["dead_letter"] += 1
            continue
        ip, kind = str(event["ip"]), event["kind"]
        if kind == "performance" and ip.startswith("92.126.10."):
            counts["filtered"] += 1
            continue
        counts["results"] += 1
        if kind == "performance" and ip.startswith("92.126.11."):
            start = math.floor(float(event["event_time"]) / WINDOW_S) * float(WINDOW_S)
            largest[start] = max(largest.get(start, -math.inf), float(event["load"]))
    return Expected(
        events_in=counts.total(),
        results=counts["results"],
        filtered=counts["filtered"],
        dead_letter=counts["dead_letter"],
        alerts={start: load for start, load in largest.items() if load > 2},
    )


def _parsed(body: bytes) -> dict[str, float | str] | None:
    try:
        event = json.loads(body)
    except ValueError:
        return None
    if not isinstance(event, dict) or "ip" not in event or not isinstance(event.get("event_time"), float):
        return None
    return event
