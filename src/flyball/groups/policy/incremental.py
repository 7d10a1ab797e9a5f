"""Sticky assignment kept up to date, one event at a time, where every member reads every topic.

The plan after each event is the one that `equal` would make from the plan before; only what changes is touched.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from flyball.errors import InvalidValue
from flyball.groups.policy.level_fill import Ints, fill_order, level_targets


class Move(NamedTuple):
    """A queue passes from one member to another; None: nobody had it."""

    queue: int
    source: str | None
    target: str


class EqualGroup:
    """The plan of a group. Queues are numbers in ascending order, `owners` the member of each."""

    def __init__(self, owners: Iterable[str | None], members: Iterable[str]) -> None:
        self._members = sorted(set(members))
        self._queues: dict[str, list[int]] = {member: [] for member in self._members}
        free = []
        for queue, owner in enumerate(owners):
            if owner in self._queues:
                self._queues[owner].append(queue)
            else:
                free.append(queue)
        self._total = sum(map(len, self._queues.values())) + len(free)
        self._loads = np.array([len(self._queues[member]) for member in self._members], np.int64)
        self._settle(dict.fromkeys(free))

    @property
    def assignment(self) -> dict[str, list[int]]:
        return {member: list(self._queues[member]) for member in self._members}

    def join(self, member: str) -> list[Move]:
        if member in self._queues:
            raise InvalidValue(f"member {member!r} is in the group already")
        index = bisect_left(self._members, member)
        self._members.insert(index, member)
        self._loads = np.concatenate([self._loads[:index], [0], self._loads[index:]])
        self._queues[member] = []
        return self._settle({})

    def leave(self, member: str) -> list[Move]:
        if member not in self._queues:
            raise InvalidValue(f"member {member!r} is not in the group")
        if len(self._members) == 1:
            raise InvalidValue(f"member {member!r} is the last of the group: nobody could take its queues")
        index = bisect_left(self._members, member)
        del self._members[index]
        self._loads = np.concatenate([self._loads[:index], self._loads[index + 1 :]])
        return self._settle(dict.fromkeys(self._queues.pop(member), member))

    def _settle(self, sources: dict[int, str | None]) -> list[Move]:
        """Take what is too much, and give it with the free queues, here by their source, to the least loaded."""
        least, larger = divmod(self._total, len(self._members))
        above = np.flatnonzero(self._loads > least)
        limits = np.full(above.size, least)
        limits[:larger] += 1
        over = self._loads[above] > limits
        above, limits = above[over], limits[over]
        for index, limit in zip(above.tolist(), limits.tolist(), strict=True):
            member = self._members[index]
            queues = self._queues[member]
            for queue in queues[limit:]:
                sources[queue] = member
            del queues[limit:]
        self._loads[above] = limits
        if not sources:
            return []
        freed = sorted(sources)
        targets = [self._members[index] for index in self._receivers(len(freed)).tolist()]
        for queue, member in zip(freed, targets, strict=True):
            insort(self._queues[member], queue)
        return list(map(Move, freed, map(sources.__getitem__, freed), targets))

    def _receivers(self, count: int) -> Ints:
        """The members that receive `count` queues, in order; their loads are counted up."""
        if count >= self._loads.size:
            targets = level_targets(self._loads, count)
            order = fill_order(self._loads, targets)
            self._loads = targets
            return order
        # Few queues among many members: level by level, without sorting the loads.
        parts = []
        while count:
            low = self._loads.min()
            level = np.flatnonzero(self._loads == low)
            # The whole level rises together until it meets the next one or there are not enough queues for all.
            rise = count // level.size
            if rise and level.size < self._loads.size:
                rise = min(rise, int(self._loads[self._loads > low].min() - low))
            if rise == 0:
                level, rise = level[:count], 1
            self._loads[level] += rise
            parts.append(level if rise == 1 else np.tile(level, rise))
            count -= level.size * rise
        return np.concatenate(parts)
