"""Which lane the combiner reads next, how far event time is complete, and which lanes it no longer waits for."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """Progress of a lane: every tick up to `tick` is complete. `missing_since_s`: since when others wait for it.
    `given_up`: the wait was too long; it does not count until it has caught up."""

    tick: int = -1
    missing_since_s: float | None = None
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Merge:
    """The combiner's state of ordering.

    `settled`: every result of every tick up to it was read (except of lanes given up). `latest_s`: the
    latest event time among events of settled ticks. `ahead`: (tick, latest event time) of entries beyond that.
    """

    lanes: Mapping[int, LaneProgress]
    settled: int = -1
    latest_s: float = -math.inf
    ahead: tuple[tuple[int, float], ...] = ()


def next_lane(merge: Merge, waiting: Collection[int], now_s: float, timeout_s: float) -> tuple[Merge, int | None]:
    """The lane to read next: the one farthest behind, ties by number, so that the order depends on the entries
    and not on their arrival. None: wait, because that lane has no entry yet.

    A lane for which others wait longer than `timeout_s` is given up; its entries are read whenever they arrive,
    and it counts again when it has caught up.

    >>> merge = Merge({0: LaneProgress(tick=5), 1: LaneProgress(tick=3)})
    >>> merge, lane = next_lane(merge, [0], now_s=10.0, timeout_s=2.0)
    >>> lane is None, next_lane(merge, [0], now_s=12.0, timeout_s=2.0)[1]
    (True, 0)
    """
    lanes = dict(merge.lanes)
    for number in sorted(number for number in waiting if number in lanes and lanes[number].given_up):
        return merge, number
    for _ in range(len(lanes)):  # each round either decides or gives one lane up
        live = [number for number, lane in lanes.items() if not lane.given_up]
        if not live:
            break
        first = min(live, key=lambda number: (lanes[number].tick, number))
        lane = lanes[first]
        if first in waiting:
            return _settled(replace(merge, lanes=lanes)), first
        if not any(number in waiting or lanes[number].tick > lane.tick for number in live):
            lanes[first] = replace(lane, missing_since_s=None)
            break
        since = now_s if lane.missing_since_s is None else lane.missing_since_s
        given_up = now_s - since >= timeout_s
        lanes[first] = replace(lane, missing_since_s=since, given_up=given_up)
        if not given_up:
            break
    return _settled(replace(merge, lanes=lanes)), None


def add_entry(
    merge: Merge, lane: int, tick: int, latest_s: float | None, members: Collection[int], last: bool
) -> Merge:
    """Add an entry of a lane: it completes the lane's ticks up to `tick`; `members` are the lanes of that tick.

    A lane joins when it is first named, at the settled tick, and leaves with its `last` entry.

    >>> merge = add_entry(Merge({0: LaneProgress()}), 0, 0, 50.0, members=[0, 1], last=False)
    >>> merge.settled, merge.latest_s
    (-1, -inf)
    >>> merge = add_entry(merge, 1, 0, 40.0, members=[0, 1], last=False)
    >>> merge.settled, merge.latest_s
    (0, 50.0)
    """
    lanes = dict(merge.lanes)
    for number in (*members, lane):
        lanes.setdefault(number, LaneProgress(tick=merge.settled))
    lanes[lane] = replace(lanes[lane], tick=max(lanes[lane].tick, tick), missing_since_s=None)
    ahead = merge.ahead if latest_s is None else (*merge.ahead, (tick, latest_s))
    if last:
        del lanes[lane]
        if not lanes:
            return _settled(Merge(lanes, max(merge.settled, tick), merge.latest_s, ahead))
    return _settled(Merge(lanes, merge.settled, merge.latest_s, ahead))


def _settled(merge: Merge) -> Merge:
    """Advance `settled` to the least complete tick of the lanes that count; lanes that caught up count again."""
    live = [progress.tick for progress in merge.lanes.values() if not progress.given_up]
    settled = max(merge.settled, min(live, default=merge.settled))
    lanes = {
        number: replace(progress, given_up=progress.given_up and progress.tick < settled)
        for number, progress in merge.lanes.items()
    }
    latest = max((time_s for at, time_s in merge.ahead if at <= settled), default=-math.inf)
    ahead = tuple((at, time_s) for at, time_s in merge.ahead if at > settled)
    return Merge(lanes, settled, max(merge.latest_s, latest), ahead)
