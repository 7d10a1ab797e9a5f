"""Whose results the combiner takes next, how far event time is settled, whom it stops waiting for."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """How far a lane's results go: every tick up to `mark` is complete. `missing_since_s`: it keeps others waiting
    since then. `given_up`: too long, so nobody waits until it has caught up."""

    mark: int = -1
    missing_since_s: float | None = None
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Merge:
    """What the combiner remembers about order.

    `settled`: every result of every tick up to it has been taken (but those of lanes given up). `latest_s`: the
    latest event time among events of settled ticks. `ahead`: (mark, latest event time) of entries beyond that.
    """

    lanes: Mapping[int, LaneProgress]
    settled: int = -1
    latest_s: float = -math.inf
    ahead: tuple[tuple[int, float], ...] = ()


def next_lane(merge: Merge, waiting: Collection[int], now_s: float, timeout_s: float) -> tuple[Merge, int | None]:
    """Whose next entry to take: the lane that is farthest behind, ties by number, so that the order depends on
    the entries and not on when they came. None: wait, for that lane has none yet.

    A lane that keeps others waiting for longer than `timeout_s` is given up; its entries are taken whenever they
    come, and it counts again when it has caught up.

    >>> merge = Merge({0: LaneProgress(mark=5), 1: LaneProgress(mark=3)})
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
        first = min(live, key=lambda number: (lanes[number].mark, number))
        lane = lanes[first]
        if first in waiting:
            return _settled(replace(merge, lanes=lanes)), first
        if not any(number in waiting or lanes[number].mark > lane.mark for number in live):
            lanes[first] = replace(lane, missing_since_s=None)
            break
        since = now_s if lane.missing_since_s is None else lane.missing_since_s
        given_up = now_s - since >= timeout_s
        lanes[first] = replace(lane, missing_since_s=since, given_up=given_up)
        if not given_up:
            break
    return _settled(replace(merge, lanes=lanes)), None


def took(
    merge: Merge, lane: int, mark: int, latest_s: float | None, members: Collection[int], last: bool
) -> Merge:
    """An entry of a lane was taken: it completes its ticks up to `mark`; `members` are the lanes of that tick.

    A lane joins when it is first named, owing everything after what is settled, and leaves with its `last` entry.

    >>> merge = took(Merge({0: LaneProgress()}), 0, 0, 50.0, members=[0, 1], last=False)
    >>> merge.settled, merge.latest_s
    (-1, -inf)
    >>> merge = took(merge, 1, 0, 40.0, members=[0, 1], last=False)
    >>> merge.settled, merge.latest_s
    (0, 50.0)
    """
    lanes = dict(merge.lanes)
    for number in (*members, lane):
        lanes.setdefault(number, LaneProgress(mark=merge.settled))
    lanes[lane] = replace(lanes[lane], mark=max(lanes[lane].mark, mark), missing_since_s=None)
    ahead = merge.ahead if latest_s is None else (*merge.ahead, (mark, latest_s))
    if last:
        del lanes[lane]
        if not lanes:
            return _settled(Merge(lanes, max(merge.settled, mark), merge.latest_s, ahead))
    return _settled(Merge(lanes, merge.settled, merge.latest_s, ahead))


def _settled(merge: Merge) -> Merge:
    """Move `settled` as far as the lanes that count allow, and those that caught up count again."""
    live = [progress.mark for progress in merge.lanes.values() if not progress.given_up]
    settled = max(merge.settled, min(live, default=merge.settled))
    lanes = {
        number: replace(progress, given_up=progress.given_up and progress.mark < settled)
        for number, progress in merge.lanes.items()
    }
    latest = max((time_s for at, time_s in merge.ahead if at <= settled), default=-math.inf)
    ahead = tuple((at, time_s) for at, time_s in merge.ahead if at > settled)
    return Merge(lanes, settled, max(merge.latest_s, latest), ahead)
