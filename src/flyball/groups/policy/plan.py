"""What a new assignment changes, and how good it is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray


class Ordered(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


AnyQueue = TypeVar("AnyQueue", bound=Ordered)


@dataclass(frozen=True, slots=True)
class Plan(Generic[AnyQueue]):
    """A new assignment and how to get there: first members revoke, then they are assigned.

    `moves` counts queues that pass from one live member to another; queues of members that left do not count.
    """

    assignment: Mapping[str, Sequence[AnyQueue]]
    revoke: Mapping[str, Sequence[AnyQueue]]
    assign: Mapping[str, Sequence[AnyQueue]]
    balance_degree: float
    stickiness: float
    moves: int


def number_owners(
    queues: Sequence[AnyQueue], owners: Mapping[AnyQueue, str], members: Sequence[str]
) -> NDArray[np.int64]:
    """Return the owner of each queue as its number in `members`, −1 where there is none."""
    number = {member: index for index, member in enumerate(members)}
    return np.array([number[owners[queue]] if queue in owners else -1 for queue in queues], np.int64)


def name_owners(
    queues: Sequence[AnyQueue], owners: NDArray[np.int64], members: Sequence[str]
) -> dict[str, list[AnyQueue]]:
    """Return the queues of each member: the reverse of `number_owners`."""
    assignment: dict[str, list[AnyQueue]] = {member: [] for member in members}
    for queue, index in zip(queues, owners.tolist(), strict=True):
        if index >= 0:
            assignment[members[index]].append(queue)
    return assignment


def make_plan(
    assignment: Mapping[str, Sequence[AnyQueue]],
    previous: Mapping[str, Iterable[AnyQueue]],
    owners: Mapping[AnyQueue, str],
    queues: int,
) -> Plan[AnyQueue]:
    """Compare `assignment` with the `previous` claims, of which those in `owners` were valid."""
    revoke: dict[str, list[AnyQueue]] = {}
    assign: dict[str, list[AnyQueue]] = {}
    stayed = moves = 0
    for member, given in assignment.items():
        before, after = set(previous.get(member, ())), set(given)
        removed = sorted(queue for queue in before if queue not in after)
        added = [queue for queue in given if queue not in before]
        if removed:
            revoke[member] = removed
        if added:
            assign[member] = added
        for queue in given:
            owner = owners.get(queue)
            stayed += owner == member
            moves += owner is not None and owner != member
    return Plan(
        assignment=assignment,
        revoke=revoke,
        assign=assign,
        balance_degree=balance_degree([len(given) for given in assignment.values()]),
        stickiness=stayed / queues if queues else 1.0,
        moves=moves,
    )


def balance_degree(loads: Sequence[int]) -> float:
    """Return the standard deviation of the members' loads; 0 is perfect balance.

    >>> balance_degree([3, 3, 2])
    0.4714045207910317
    """
    if not loads:
        return 0.0
    mean = sum(loads) / len(loads)
    return math.sqrt(sum((load - mean) ** 2 for load in loads) / len(loads))
