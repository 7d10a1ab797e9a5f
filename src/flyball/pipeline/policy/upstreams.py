"""The watermark of an input that other pipelines write: the least of the watermark marks that they send.

An upstream pipeline that sends nothing while others continue is given up after a while, so that it does not stall
the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class UpstreamProgress:
    """`promised_s`: its watermark. `missing_since_s`: since when others wait for it."""

    promised_s: float = -math.inf
    missing_since_s: float | None = None
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Upstreams:
    """`ahead`: (tick, marks) of ticks that are not complete yet. `until_s`: the watermark so far."""

    sources: Mapping[str, UpstreamProgress]
    ahead: tuple[tuple[int, Mapping[str, float]], ...] = ()
    until_s: float = -math.inf


def upstreams_of(names: Sequence[str]) -> Upstreams:
    return Upstreams({name: UpstreamProgress() for name in names})


def with_marks(feeds: Upstreams, tick: int, marks: Mapping[str, float]) -> Upstreams:
    """Add the marks of a part of a tick; they count once the tick is complete."""
    known = {name: time_s for name, time_s in marks.items() if name in feeds.sources}
    return replace(feeds, ahead=(*feeds.ahead, (tick, known))) if known else feeds


def settled_time_s(feeds: Upstreams, settled: int, now_s: float, timeout_s: float) -> tuple[Upstreams, float]:
    """The watermark when all ticks up to `settled` are complete.

    >>> feeds = with_marks(upstreams_of(["lyon", "paris"]), 0, {"lyon": 50.0, "paris": 40.0})
    >>> feeds, until = settled_time_s(feeds, 0, now_s=1.0, timeout_s=60.0)
    >>> until, settled_time_s(feeds, 0, now_s=61.0, timeout_s=60.0)[1]
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
    # The farthest is never given up, so the minimum is never empty.
    until_s = min(source.promised_s for source in sources.values() if not source.given_up)
    ahead = tuple((tick, marks) for tick, marks in feeds.ahead if tick > settled)
    return Upstreams(sources, ahead, until_s), until_s


def all_ended(feeds: Upstreams) -> bool:
    """Whether every upstream has ended; one that was given up has not."""
    return all(source.promised_s == math.inf for source in feeds.sources.values())


def ended_at(feeds: Upstreams, time_s: float) -> Upstreams:
    """All upstreams had ended at this time; if one sends more after all, the watermark continues from here."""
    sources = {name: UpstreamProgress(min(one.promised_s, time_s)) for name, one in feeds.sources.items()}
    return replace(feeds, sources=sources, until_s=min(feeds.until_s, time_s))
