"""How far event time is settled where other pipelines write the input: none of them may send anything older.

Each of them says so itself, in marks. What is settled is the least that all have promised. One that falls silent
while others go on is given up after some time: it must not stall the rest for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """`promised_s`: nothing older follows. `missing_since_s`: it keeps others waiting since then."""

    promised_s: float = -math.inf
    missing_since_s: float | None = None
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Feeds:
    """`ahead`: (tick, promises) of ticks that are not complete yet. `until_s`: what was settled last."""

    sources: Mapping[str, FeedProgress]
    ahead: tuple[tuple[int, Mapping[str, float]], ...] = ()
    until_s: float = -math.inf


def feeds_of(names: Sequence[str]) -> Feeds:
    return Feeds({name: FeedProgress() for name in names})


def told(feeds: Feeds, tick: int, marks: Mapping[str, float]) -> Feeds:
    """A part of a tick brought these marks; they count when all of the tick is there."""
    known = {name: time_s for name, time_s in marks.items() if name in feeds.sources}
    return replace(feeds, ahead=(*feeds.ahead, (tick, known))) if known else feeds


def settled_s(feeds: Feeds, settled: int, now_s: float, timeout_s: float) -> tuple[Feeds, float]:
    """The time up to which everything is there, when all ticks up to `settled` are complete.

    >>> feeds = told(feeds_of(["lyon", "paris"]), 0, {"lyon": 50.0, "paris": 40.0})
    >>> feeds, until = settled_s(feeds, 0, now_s=1.0, timeout_s=60.0)
    >>> until, settled_s(feeds, 0, now_s=61.0, timeout_s=60.0)[1]
    (40.0, 50.0)
    """
    sources = dict(feeds.sources)
    for tick, marks in feeds.ahead:
        for name, time_s in marks.items() if tick <= settled else ():
            if time_s > sources[name].promised_s:
                sources[name] = replace(sources[name], promised_s=time_s, missing_since_s=None)
    farthest_s = max(source.promised_s for source in sources.values())
    for name, source in sources.items():
        waits = source.promised_s < farthest_s
        since_s = (now_s if source.missing_since_s is None else source.missing_since_s) if waits else None
        behind = source.given_up and source.promised_s < feeds.until_s
        given_up = since_s is not None and (behind or now_s - since_s >= timeout_s)
        sources[name] = replace(source, missing_since_s=since_s, given_up=given_up)
    # The farthest is never given up, so somebody always counts.
    until_s = min(source.promised_s for source in sources.values() if not source.given_up)
    ahead = tuple((tick, marks) for tick, marks in feeds.ahead if tick > settled)
    return Feeds(sources, ahead, until_s), until_s


def all_ended(feeds: Feeds) -> bool:
    """Nothing follows from any of them; one that was given up has not ended."""
    return all(source.promised_s == math.inf for source in feeds.sources.values())


def ended_at(feeds: Feeds, time_s: float) -> Feeds:
    """All sources had ended; should more follow after all, it goes on from this time."""
    sources = {name: FeedProgress(min(one.promised_s, time_s)) for name, one in feeds.sources.items()}
    return replace(feeds, sources=sources, until_s=min(feeds.until_s, time_s))
