"""Our sticky strategy in programs that consume with aiokafka: an assignor for its `partition_assignment_strategy`.

The leader of the group computes the plan of `policy/sticky.py` from what the members claim in the user data of
their subscriptions: the partitions that they had, and the generation of the plan that gave them. Generations are
counted in the user data of the plans, since aiokafka does not tell an assignor Kafka's own. User data that cannot
be read, such as that of another program, claims nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from flyball.errors import require
from flyball.groups.policy.group import Claims, Group, Member, Queue
from flyball.groups.policy.sticky import assign_sticky

require("aiokafka", "aiokafka")

from aiokafka.cluster import ClusterMetadata  # noqa: E402
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor  # noqa: E402
from aiokafka.coordinator.protocol import (  # noqa: E402
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

_VERSION = 0
"""Of Kafka's own format of subscriptions and assignments."""
_NO_GENERATION = -1
_MOST_GENERATION = 2**62


@dataclass(frozen=True, slots=True)
class Claim:
    """What a consumer had, and the generation of the plan that gave it."""

    queues: tuple[Queue, ...] = ()
    generation: int = _NO_GENERATION

    def encode(self) -> bytes:
        queues: dict[str, list[int]] = {}
        for topic, number in self.queues:
            queues.setdefault(topic, []).append(number)
        return json.dumps({"generation": self.generation, "queues": queues}, separators=(",", ":")).encode()


def decode_claim(user_data: bytes | None) -> Claim:
    """
    >>> decode_claim(Claim((("orders", 3),), 7).encode())
    Claim(queues=(('orders', 3),), generation=7)
    >>> decode_claim(b"of somebody else")
    Claim(queues=(), generation=-1)
    """
    try:
        found = json.loads(user_data or b"null")
        generation, numbers_of = found["generation"], found["queues"]
        queues = tuple((topic, number) for topic, numbers in numbers_of.items() for number in numbers)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Claim()
    if not _is_generation(generation) or not all(type(number) is int for _, number in queues):
        return Claim()
    return Claim(queues, generation)


def _is_generation(value: Any) -> bool:
    # A generation out of all proportion would be the highest for ever.
    return type(value) is int and _NO_GENERATION <= value <= _MOST_GENERATION


class StickyAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """Assigns partitions by our sticky strategy: the best balance, then as many as possible stay.

        AIOKafkaConsumer("orders", group_id="shop", partition_assignment_strategy=[StickyAssignor])

    All members of a group must have it. Several consumers of a process may share the class: what each had is
    remembered by the task in which it joins its group.
    """

    name = "flyball-sticky"
    _claims: ClassVar[WeakKeyDictionary[object, Claim]] = WeakKeyDictionary()

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        claims = {member: decode_claim(metadata.user_data) for member, metadata in members.items()}
        topics = {topic for metadata in members.values() for topic in metadata.subscription}
        group = Group(
            {topic: sorted(cluster.partitions_for_topic(topic) or ()) for topic in topics},
            {member: Member(frozenset(metadata.subscription)) for member, metadata in members.items()},
        )
        plan = assign_sticky(
            group,
            Claims(
                {member: claim.queues for member, claim in claims.items()},
                {member: claim.generation for member, claim in claims.items()},
            ),
        )
        generation = 1 + max((claim.generation for claim in claims.values()), default=_NO_GENERATION)
        user_data = Claim(generation=generation).encode()
        return {
            member: ConsumerProtocolMemberAssignment(_VERSION, _by_topic(queues), user_data)
            for member, queues in plan.assignment.items()
        }

    @classmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        claim = cls._claims.get(_task(), Claim())
        return ConsumerProtocolMemberMetadata(_VERSION, sorted(topics), claim.encode())

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        generation = decode_claim(assignment.user_data).generation
        queues = tuple((topic, number) for topic, numbers in assignment.assignment for number in numbers)
        cls._claims[_task()] = Claim(queues, generation)


class _NoTask:
    """Stands for the task where there is none."""


_NO_TASK = _NoTask()


def _task() -> object:
    """Return the task that calls: a consumer of aiokafka joins its group in one task as long as it lives."""
    try:
        return asyncio.current_task() or _NO_TASK
    except RuntimeError:
        return _NO_TASK


def _by_topic(queues: Iterable[Queue]) -> list[tuple[str, list[int]]]:
    numbers: dict[str, list[int]] = {}
    for topic, number in queues:
        numbers.setdefault(topic, []).append(number)
    return sorted(numbers.items())
