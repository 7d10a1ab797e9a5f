"""The assignor for aiokafka: its plans, what it makes of foreign user data, real consumers on a real broker."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flyball.groups.aiokafka_assignor import Claim, StickyAssignor, decode_claim
from flyball.groups.policy.group import Queue

_Plan = Mapping[str, ConsumerProtocolMemberAssignment]


class _Cluster:
    """The part of aiokafka's metadata that an assignor asks for."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self._topics = topics

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._topics[topic])) if topic in self._topics else None


def _subscription(topics: str | list[str], user_data: bytes | None = b"") -> ConsumerProtocolMemberMetadata:
    return ConsumerProtocolMemberMetadata(0, list(topics), user_data)


def _queues(assignment: ConsumerProtocolMemberAssignment) -> set[Queue]:
    return {(topic, number) for topic, numbers in assignment.assignment for number in numbers}


def _claims(plan: _Plan) -> dict[str, bytes]:
    """The user data with which the members of a plan join again, after a passage through Kafka's format."""
    claims = {}
    for member, assignment in plan.items():
        received = ConsumerProtocolMemberAssignment.decode(assignment.encode())
        StickyAssignor.on_assignment(received)
        claims[member] = StickyAssignor.metadata(["any"]).user_data
    return claims


def test_a_member_that_leaves_moves_only_its_own_and_one_that_joins_gets_its_share() -> None:
    cluster = _Cluster({"t": 12})
    first = StickyAssignor.assign(cluster, {name: _subscription("t") for name in "abc"})
    claims = _claims(first)
    two = StickyAssignor.assign(cluster, {name: _subscription("t", claims[name]) for name in "ac"})
    for name in "ac":
        assert _queues(first[name]) < _queues(two[name])
        assert len(_queues(two[name])) == 6
    claims = _claims(two)
    again = StickyAssignor.assign(
        cluster,
        {"a": _subscription("t", claims["a"]), "c": _subscription("t", claims["c"]), "d": _subscription("t")},
    )
    assert [len(_queues(again[name])) for name in "acd"] == [4, 4, 4]
    assert _queues(again["a"]) < _queues(two["a"])
    assert _queues(again["c"]) < _queues(two["c"])
    assert decode_claim(claims["a"]).generation == 1


def test_84_consumers_each_with_a_topic_of_its_own_keep_what_they_have() -> None:
    topics = {f"topic{number}": 12 for number in range(7)}
    members = {
        f"process{process:02d}-{topic}": _subscription([topic]) for process in range(12) for topic in topics
    }
    first = StickyAssignor.assign(_Cluster(topics), members)
    assert {len(_queues(assignment)) for assignment in first.values()} == {1}
    claims = _claims(first)
    left = {
        name: _subscription(member.subscription, claims[name])
        for name, member in members.items()
        if not name.startswith("process03")
    }
    second = StickyAssignor.assign(_Cluster(topics), left)
    assert all(_queues(first[name]) <= _queues(second[name]) for name in left)
    assert len(set().union(*map(_queues, second.values()))) == 84


def test_a_zombie_with_an_old_generation_takes_nothing_back() -> None:
    cluster = _Cluster({"t": 4})
    old = Claim((("t", 0), ("t", 1)), 3).encode()
    new = Claim((("t", 0), ("t", 1)), 4).encode()
    plan = StickyAssignor.assign(cluster, {"a": _subscription("t", old), "b": _subscription("t", new)})
    assert _queues(plan["b"]) == {("t", 0), ("t", 1)}


@pytest.mark.parametrize(
    "user_data",
    [
        None,
        b"",
        b"null",
        b"\xff\x00\x01",
        b"[" * 100_000,
        b"1" * 10_000,
        b'{"generation": 1}',
        b'{"generation": "1", "queues": {}}',
        b'{"generation": true, "queues": {}}',
        b'{"generation": 1e300, "queues": {"t": [0]}}',
        b'{"generation": 99999999999999999999999, "queues": {"t": [0]}}',
        b'{"generation": 1, "queues": {"t": 5}}',
        b'{"generation": 1, "queues": {"t": "01"}}',
        b'{"generation": 1, "queues": {"t": [null]}}',
        b'{"generation": 1, "queues": ["t"]}',
    ],
)
def test_user_data_that_cannot_be_read_claims_nothing(user_data: bytes | None) -> None:
    assert decode_claim(user_data) == Claim()
    plan = StickyAssignor.assign(
        _Cluster({"t": 4}),
        {"a": _subscription("t", user_data), "b": _subscription("t", Claim((("t", 0),), 1).encode())},
    )
    assert ("t", 0) in _queues(plan["b"])
    assert [len(_queues(plan[name])) for name in "ab"] == [2, 2]


def test_claims_to_what_does_not_exist_are_survived() -> None:
    draw = random.Random(7)
    for _ in range(300):
        claims = {
            name: json.dumps(
                {
                    "generation": draw.randint(-1, 3),
                    "queues": {draw.choice("tuvx"): [draw.randint(-3, 9) for _ in range(draw.randint(0, 9))]},
                }
            ).encode()
            for name in "abcd"
        }
        members = {name: _subscription(draw.sample("tuvw", draw.randint(0, 3)), claims[name]) for name in "abcd"}
        plan = StickyAssignor.assign(_Cluster({"t": 4, "u": 3, "v": 0}), members)
        given = [queue for name in "abcd" for queue in _queues(plan[name])]
        assert len(set(given)) == len(given)
        wanted = {topic for member in members.values() for topic in member.subscription}
        assert set(given) == {(t, n) for t, count in (("t", 4), ("u", 3)) if t in wanted for n in range(count)}
        assert all(topic in members[name].subscription for name in "abcd" for topic, _ in _queues(plan[name]))


# --- real consumers -----------------------------------------------------------------------------------------


class _Consumers:
    """Consumers of one group, all in this process, and what each has."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._group = f"group-{uuid.uuid4().hex[:8]}"
        self._by_name: dict[str, AIOKafkaConsumer] = {}

    async def join(self, name: str, *topics: str) -> None:
        consumer = AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self._address,
            group_id=self._group,
            partition_assignment_strategy=[StickyAssignor],
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
        )
        self._by_name[name] = consumer
        await consumer.start()

    async def leave(self, name: str) -> None:
        await self._by_name.pop(name).stop()

    async def stop(self) -> None:
        for name in list(self._by_name):
            await self.leave(name)

    async def settled(self, is_settled: Callable[[dict[str, set[Any]]], bool]) -> dict[str, set[Any]]:
        """Wait until the members have what `is_settled` asks for, and return it."""
        for _ in range(600):
            has = {name: set(consumer.assignment()) for name, consumer in self._by_name.items()}
            if is_settled(has):
                return has
            await asyncio.sleep(0.1)
        raise AssertionError(f"the group does not settle: {has}")


def _complete(queues: int, *loads: int) -> Callable[[dict[str, set[Any]]], bool]:
    def complete(has: dict[str, set[Any]]) -> bool:
        given = list(has.values())
        return len(set().union(*given)) == queues == sum(map(len, given)) and sorted(map(len, given)) == sorted(
            loads
        )

    return complete


def _create(address: str, topics: Mapping[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()]).values():
        made.result()


def test_real_consumers_that_come_and_go_move_the_fewest_partitions(kafka_url: str) -> None:
    address = urlsplit(kafka_url).netloc
    topic = f"sticky-{uuid.uuid4().hex[:8]}"
    _create(address, {topic: 12})

    async def run() -> None:
        consumers = _Consumers(address)
        try:
            for name in "abc":
                await consumers.join(name, topic)
            three = await consumers.settled(_complete(12, 4, 4, 4))
            await consumers.leave("b")
            two = await consumers.settled(_complete(12, 6, 6))
            assert all(three[name] < two[name] for name in "ac")
            await consumers.join("d", topic)
            again = await consumers.settled(_complete(12, 4, 4, 4))
            assert all(again[name] < two[name] for name in "ac")
        finally:
            await consumers.stop()

    asyncio.run(run())


def test_real_consumers_with_different_topics_are_balanced_and_keep_what_they_have(kafka_url: str) -> None:
    address = urlsplit(kafka_url).netloc
    common, own = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("common", "own"))
    _create(address, {common: 6, own: 4})

    async def run() -> None:
        consumers = _Consumers(address)
        try:
            await consumers.join("a", common)
            await consumers.join("b", common, own)
            first = await consumers.settled(_complete(10, 5, 5))
            assert {partition.topic for partition in first["a"]} == {common}
            await consumers.join("c", own)
            # Only c can relieve b, of what b alone could read before.
            second = await consumers.settled(_complete(10, 3, 3, 4))
            assert len(first["a"] - second["a"]) <= 2
            assert {partition.topic for partition in second["c"]} == {own}
            await consumers.leave("c")
            third = await consumers.settled(_complete(10, 5, 5))
            assert second["a"] <= third["a"] or second["b"] <= third["b"]
        finally:
            await consumers.stop()

    asyncio.run(run())
