"""RocketMQ's strategies give the answers that its users know."""

from __future__ import annotations

import hashlib
from functools import partial

import pytest

from flyball.errors import InvalidValue
from flyball.groups.policy.averagely import allocate_averagely
from flyball.groups.policy.averagely_by_circle import allocate_by_circle
from flyball.groups.policy.broker_queue import BrokerQueue, allocate_by_topic, sort_members
from flyball.groups.policy.by_config import allocate_by_config
from flyball.groups.policy.consistent_hash import allocate_by_hash
from flyball.groups.policy.machine_room import allocate_by_machine_room
from flyball.groups.policy.machine_room_nearby import allocate_nearby


def _queues(broker: str, count: int, topic: str = "t") -> list[BrokerQueue]:
    return [BrokerQueue(topic, broker, number) for number in range(count)]


def _short(assignment: dict[str, list[BrokerQueue]]) -> dict[str, list[str]]:
    return {member: [f"{q.broker}{q.number}" for q in given] for member, given in assignment.items()}


@pytest.mark.parametrize(
    ("queues", "members", "sizes"),
    [(8, 3, [3, 3, 2]), (2, 4, [1, 1, 0, 0]), (4, 4, [1, 1, 1, 1]), (10, 4, [3, 3, 2, 2])],
)
def test_averagely_gives_contiguous_blocks(queues: int, members: int, sizes: list[int]) -> None:
    names = [f"m{index}" for index in range(members)]
    given = allocate_averagely(_queues("b", queues), names)
    assert [len(given[name]) for name in names] == sizes
    assert [queue for name in names for queue in given[name]] == _queues("b", queues)


def test_by_circle_deals_queues_in_turn() -> None:
    assert _short(allocate_by_circle(_queues("b", 4), ["m0", "m1", "m2"])) == {
        "m0": ["b0", "b3"],
        "m1": ["b1"],
        "m2": ["b2"],
    }


def test_queues_sort_by_broker_and_number_and_members_as_texts() -> None:
    queues = [BrokerQueue("t", "b", 10), BrokerQueue("t", "b", 9), BrokerQueue("t", "a", 11)]
    given = allocate_by_topic(queues, ["m10", "m9"], allocate_averagely)
    assert _short(given) == {"m10": ["a11", "b9"], "m9": ["b10"]}
    assert sort_members(["\U0001f600", "\uff21", "a", "a"]) == ["a", "\U0001f600", "\uff21"]  # as in Java


def test_each_topic_is_allocated_by_itself() -> None:
    queues = _queues("b", 1, "t1") + _queues("b", 1, "t2")
    assert _short(allocate_by_topic(queues, ["m0", "m1"], allocate_averagely)) == {"m0": ["b0", "b0"], "m1": []}


def _ring_point(text: str) -> int:
    return int(hashlib.md5(text.encode()).hexdigest()[:8], 16)


def test_consistent_hash_gives_a_queue_to_the_next_point_of_the_ring() -> None:
    members, queues = ["m0", "m1", "m2"], _queues("broker-a", 40, "orders")
    points = sorted((_ring_point(f"{member}-{replica}"), member) for member in members for replica in range(10))
    given = allocate_by_hash(queues, members)
    for queue in queues:
        key = _ring_point(f"MessageQueue [topic=orders, brokerName=broker-a, queueId={queue.number}]")
        owner = next((member for point, member in points if point >= key), points[0][1])
        assert queue in given[owner]
    without = allocate_by_hash(queues, ["m0", "m2"])
    assert set(given["m0"]) <= set(without["m0"])
    assert set(given["m2"]) <= set(without["m2"])


def test_consistent_hash_without_virtual_nodes_gives_nothing_and_negative_ones_are_refused() -> None:
    assert allocate_by_hash(_queues("b", 3), ["m0"], 0) == {"m0": []}
    with pytest.raises(InvalidValue, match="virtual_nodes must be an integer >= 0, got -1"):
        allocate_by_hash(_queues("b", 3), ["m0"], -1)


def test_by_config_gives_the_list_as_it_is() -> None:
    config = [BrokerQueue("other", "nowhere", 5), BrokerQueue("other", "nowhere", 5)]
    assert allocate_by_config(config, ["m1", "m0"]) == {"m0": config, "m1": config}


def test_by_machine_room_reads_only_the_given_rooms() -> None:
    queues = _queues("r1@b", 7) + _queues("r2@b", 2) + _queues("r1@b@c", 2) + _queues("plain", 2)
    given = allocate_by_machine_room(queues, ["m0", "m1", "m2"], {"r1"})
    assert [[q.number for q in given[m]] for m in given] == [[0, 1, 6], [2, 3], [4, 5]]


def test_nearby_keeps_queues_in_their_room_and_shares_those_of_empty_rooms() -> None:
    queues = _queues("r1-b", 3) + _queues("r2-b", 2) + _queues("r3-b", 3) + _queues("r4-b", 1)
    given = allocate_nearby(queues, ["r1-m0", "r1-m1", "r2-m2"], allocate_averagely)
    assert _short(given) == {
        "r1-m0": ["r1-b0", "r1-b1", "r3-b0", "r4-b0"],
        "r1-m1": ["r1-b2", "r3-b1"],
        "r2-m2": ["r2-b0", "r2-b1", "r3-b2"],
    }
    by_hash = allocate_nearby(queues, ["r1-m0", "r2-m2"], partial(allocate_by_hash, virtual_nodes=3))
    assert {q.broker for q in by_hash["r1-m0"]} <= {"r1-b", "r3-b", "r4-b"}
