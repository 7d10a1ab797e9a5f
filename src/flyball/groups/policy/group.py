"""A consumer group as a strategy sees it, and the plan that a strategy makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Queue: TypeAlias = tuple[str, int]
"""Topic and number."""

Assignment: TypeAlias = Mapping[str, Sequence[Queue]]
"""The queues of each member."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member's subscription, the rack that it runs in, and how much work it does in a second of busy time."""

    topics: frozenset[str]
    rack: str | None = None
    capacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """Topics with the numbers of their queues, and members by id. `racks`: where a queue's replicas are."""

    topics: Mapping[str, Sequence[int]]
    members: Mapping[str, Member]
    racks: Mapping[Queue, frozenset[str]] = field(default_factory=dict)

    def queues(self) -> list[Queue]:
        """All queues in ascending order."""
        return [(topic, number) for topic in sorted(self.topics) for number in sorted(set(self.topics[topic]))]


@dataclass(frozen=True, slots=True)
class Claims:
    """The previous assignment as each member reports it, with the generation of its report (absent: −1)."""

    queues: Assignment = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)


def owners_by_claim(group: Group, claims: Claims) -> dict[Queue, str]:
    """Return who owns what of the previous assignment.

    Departed members, vanished queues and topics that a member no longer reads drop out. Of several claims to a
    queue the one with the highest generation holds; if two share the highest, nobody owns the queue.
    """
    best: dict[Queue, tuple[int, str | None]] = {}
    for member in sorted(claims.queues.keys() & group.members.keys()):
        generation = claims.generations.get(member, -1)
        for queue in set(claims.queues[member]):
            highest, _ = best.get(queue, (None, None))
            if highest is None or generation > highest:
                best[queue] = (generation, member)
            elif generation == highest:
                best[queue] = (generation, None)
    numbers = {topic: frozenset(ids) for topic, ids in group.topics.items()}
    return {
        queue: member
        for queue, (_, member) in best.items()
        if member is not None
        and queue[0] in group.members[member].topics
        and queue[1] in numbers.get(queue[0], ())
    }
