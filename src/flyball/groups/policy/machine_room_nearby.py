"""Machine-room nearby: queues stay with the live members of their room; the room is what precedes the first "-".

Goals: no traffic between rooms where it can be avoided; within a room what the inner strategy pursues. The queues
of each room without members are shared among all members by the inner strategy, room by room.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball.groups.policy.broker_queue import Allocate, BrokerQueue, java_order


def allocate_nearby(
    queues: Sequence[BrokerQueue], members: Sequence[str], inner: Allocate
) -> dict[str, list[BrokerQueue]]:
    members_of: dict[str, list[str]] = {}
    for member in members:
        members_of.setdefault(_room(member), []).append(member)
    queues_of: dict[str, list[BrokerQueue]] = {}
    for queue in queues:
        queues_of.setdefault(_room(queue.broker), []).append(queue)
    result: dict[str, list[BrokerQueue]] = {member: [] for member in members}
    # A member's own room first, then rooms without members.
    for room in sorted(queues_of, key=lambda name: (name not in members_of, java_order(name))):
        for member, given in inner(queues_of[room], members_of.get(room, members)).items():
            result[member] += given
    return result


def _room(name: str) -> str:
    return name.split("-", 1)[0]
