"""Assignment cases as JSON documents: what `flyball assign` reads and prints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator

from flyball.errors import InvalidValue
from flyball.groups.policy.averagely import allocate_averagely
from flyball.groups.policy.averagely_by_circle import allocate_by_circle
from flyball.groups.policy.broker_queue import Allocate, BrokerQueue, allocate_by_topic
from flyball.groups.policy.by_config import allocate_by_config
from flyball.groups.policy.consistent_hash import VIRTUAL_NODES, allocate_by_hash
from flyball.groups.policy.group import Claims, Group, Member, owners_by_claim
from flyball.groups.policy.load import LoadLimits, assign_load
from flyball.groups.policy.machine_room import allocate_by_machine_room
from flyball.groups.policy.machine_room_nearby import allocate_nearby
from flyball.groups.policy.plan import Plan, make_plan
from flyball.groups.policy.sticky import assign_sticky
from flyball.loops.toml import check
from flyball.strict_model import StrictModel

QueueInTopic: TypeAlias = tuple[StrictStr, StrictInt]
QueueCount: TypeAlias = Annotated[StrictInt, Field(ge=0)]
Weight: TypeAlias = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]
Capacity: TypeAlias = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]
MAX_QUEUES = 5_000_000
"""Of a case: `{"t": 1e18}` is quickly written."""
MAX_CELLS = 50_000_000
"""Topics × members of a case."""
MAX_POINTS = 5_000_000
"""Of a hash ring."""

Inner: TypeAlias = Literal["averagely", "averagely-by-circle", "consistent-hash"]


class MemberEntry(StrictModel):
    topics: list[StrictStr]
    rack: StrictStr | None = None
    capacity: Capacity = 1.0


class TopicCase(StrictModel):
    """Queues are pairs of topic and number. Weights and capacities are for `load`, racks for `sticky`."""

    id: StrictStr
    strategy: Literal["sticky", "load"]
    topics: dict[str, QueueCount | list[StrictInt]]
    members: dict[str, MemberEntry]
    previous: dict[str, list[QueueInTopic]] = Field(default_factory=dict)
    generation: dict[str, StrictInt] = Field(default_factory=dict)
    rack_aware: StrictBool = False
    queue_racks: list[tuple[QueueInTopic, list[StrictStr]]] = Field(default_factory=list)
    weights: list[tuple[QueueInTopic, Weight]] = Field(default_factory=list)
    band: Weight = 0.05


class BrokerCase(StrictModel):
    """Queues are texts `topic/broker/number`, as RocketMQ's strategies know them."""

    id: StrictStr
    members: list[StrictStr]
    queues: list[StrictStr] = Field(default_factory=list)
    previous: dict[str, list[StrictStr]] = Field(default_factory=dict)
    client: StrictStr | None = None
    """Only what this member gets."""

    @field_validator("queues", "config", check_fields=False)
    @classmethod
    def _check_queues(cls, queues: list[str]) -> list[str]:
        for queue in queues:
            parse_queue(queue)
        return queues

    @field_validator("previous")
    @classmethod
    def _check_previous(cls, previous: dict[str, list[str]]) -> dict[str, list[str]]:
        for queues in previous.values():
            cls._check_queues(queues)
        return previous


class PlainCase(BrokerCase):
    strategy: Literal["averagely", "averagely-by-circle"]


class HashCase(BrokerCase):
    strategy: Literal["consistent-hash"]
    virtual_nodes: StrictInt = VIRTUAL_NODES


class ConfigCase(BrokerCase):
    strategy: Literal["by-config"]
    config: list[StrictStr]


class RoomCase(BrokerCase):
    strategy: Literal["by-machine-room"]
    rooms: list[StrictStr]


class NearbyCase(BrokerCase):
    strategy: Literal["machine-room-nearby"]
    inner: Inner = "averagely"
    virtual_nodes: StrictInt = VIRTUAL_NODES


AnyCase: TypeAlias = TopicCase | PlainCase | HashCase | ConfigCase | RoomCase | NearbyCase

_CASES: dict[str, type[AnyCase]] = {
    "sticky": TopicCase,
    "load": TopicCase,
    "averagely": PlainCase,
    "averagely-by-circle": PlainCase,
    "consistent-hash": HashCase,
    "by-config": ConfigCase,
    "by-machine-room": RoomCase,
    "machine-room-nearby": NearbyCase,
}


def solve_cases(cases: Any) -> dict[str, dict[str, Any]]:
    """Solve a list of cases; the results by case id. A case that cannot be solved has an `error`."""
    if not isinstance(cases, list):
        raise InvalidValue(f"cases must be a list of objects with id and strategy, got {type(cases).__name__}")
    results: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(cases, start=1):
        name = case.get("id") if isinstance(case, Mapping) else None
        if not isinstance(name, str):
            raise InvalidValue(f"case number {number} must be an object with a text as id, got {case!r:.60}")
        if name in results:
            raise InvalidValue(f"ids of cases must differ, got {name!r} twice")
        try:
            results[name] = _solve(check(case, _model(case), f"case {name!r}"))
        except InvalidValue as error:
            results[name] = {"error": str(error)}
    return results


def _model(case: Mapping[str, Any]) -> type[AnyCase]:
    strategy = case.get("strategy")
    model = _CASES.get(strategy) if isinstance(strategy, str) else None
    if model is None:
        raise InvalidValue(f"strategy of case {case['id']!r} must be one of {', '.join(_CASES)}, got {strategy!r}")
    return model


def parse_queue(text: str) -> BrokerQueue:
    """
    >>> parse_queue("orders/broker-a/3")
    BrokerQueue(topic='orders', broker='broker-a', number=3)
    """
    topic, _, rest = text.partition("/")
    broker, _, number = rest.rpartition("/")
    if not (topic and broker and number.isascii() and number.isdigit()):
        raise InvalidValue(f"a queue must be topic/broker/number, got {text!r}")
    return BrokerQueue(topic, broker, int(number))


def _solve(case: AnyCase) -> dict[str, Any]:
    if isinstance(case, TopicCase):
        return _solve_by_topic(case)
    return _solve_by_broker(case)


def _check_sizes(case: TopicCase) -> None:
    for topic, numbers in case.topics.items():
        if isinstance(numbers, list) and len(set(numbers)) < len(numbers):
            raise InvalidValue(f"queue numbers of topic {topic!r} must differ, got {numbers!r:.60}")
    queues = sum(numbers if isinstance(numbers, int) else len(numbers) for numbers in case.topics.values())
    if queues > MAX_QUEUES:
        raise InvalidValue(f"topics must have at most {MAX_QUEUES} queues together, got {queues}")
    cells = len(case.topics) * len(case.members)
    if cells > MAX_CELLS:
        raise InvalidValue(f"topics × members must be at most {MAX_CELLS}, got {cells}")


def _solve_by_topic(case: TopicCase) -> dict[str, Any]:
    _check_sizes(case)
    group = Group(
        topics={name: range(n) if isinstance(n, int) else n for name, n in case.topics.items()},
        members={
            name: Member(frozenset(entry.topics), entry.rack, entry.capacity)
            for name, entry in case.members.items()
        },
        racks={queue: frozenset(racks) for queue, racks in case.queue_racks},
    )
    claims = Claims(case.previous, case.generation)
    if case.strategy == "load":
        return _solve_load(case, group, claims)
    start = time.perf_counter()
    plan = assign_sticky(group, claims, rack_aware=case.rack_aware)
    elapsed_s = time.perf_counter() - start
    fewest = assign_sticky(group, claims).moves if case.rack_aware else plan.moves
    return _document(plan, list, fewest, elapsed_s)


def _solve_load(case: TopicCase, group: Group, claims: Claims) -> dict[str, Any]:
    weights = dict(case.weights)
    missing = [queue for queue in group.queues() if queue not in weights]
    if missing:
        raise InvalidValue(
            f"weights must name every queue, got none for {list(missing[0])!r} (and {len(missing) - 1} more)"
        )
    start = time.perf_counter()
    found = assign_load(group, claims, weights, LoadLimits(case.band, max_moves=None))
    elapsed_s = time.perf_counter() - start
    document = _document(found.plan, list, None, elapsed_s)
    document["metrics"] |= {
        "utilisation": found.utilisation,
        "largest_utilisation": max(found.utilisation.values()),
        "too_heavy": [list(queue) for queue in found.too_heavy],
    }
    return document


def _solve_by_broker(case: PlainCase | HashCase | ConfigCase | RoomCase | NearbyCase) -> dict[str, Any]:
    _check_call(case)
    queues = [parse_queue(text) for text in case.queues]
    start = time.perf_counter()
    if isinstance(case, ConfigCase):
        members = case.members if case.client is None else [case.client]
        assignment = allocate_by_config([parse_queue(text) for text in case.config], members)
    else:
        assignment = allocate_by_topic(queues, case.members, _allocate(case))
        if case.client is not None:
            assignment = {case.client: assignment.get(case.client, [])}
    elapsed_s = time.perf_counter() - start
    previous = {member: [parse_queue(text) for text in given] for member, given in case.previous.items()}
    group, claims = _as_group(queues, case.members, previous)
    owners = {
        BrokerQueue(*_split(topic), number): m for (topic, number), m in owners_by_claim(group, claims).items()
    }
    plan = make_plan(assignment, previous, owners, len(set(queues)))
    fewest = assign_sticky(group, claims).moves if queues else 0
    return _document(plan, lambda queue: f"{queue.topic}/{queue.broker}/{queue.number}", fewest, elapsed_s)


def _check_call(case: BrokerCase) -> None:
    """In RocketMQ's order: the client, the queues, the members."""
    if case.client == "":
        raise InvalidValue("client must not be empty, got ''")
    if not case.queues:
        raise InvalidValue("queues must name at least one queue, got none")
    if not case.members:
        raise InvalidValue("members must name at least one member, got none")
    if isinstance(case, HashCase | NearbyCase) and case.virtual_nodes * len(case.members) > MAX_POINTS:
        raise InvalidValue(
            f"virtual_nodes × members must be at most {MAX_POINTS}, got {case.virtual_nodes} × {len(case.members)}"
        )


def _allocate(case: PlainCase | HashCase | RoomCase | NearbyCase) -> Allocate:
    if isinstance(case, RoomCase):
        return partial(allocate_by_machine_room, rooms=frozenset(case.rooms))
    if isinstance(case, NearbyCase):
        return partial(allocate_nearby, inner=_plain(case.inner, case.virtual_nodes))
    return _plain(case.strategy, case.virtual_nodes if isinstance(case, HashCase) else VIRTUAL_NODES)


def _plain(strategy: Inner, virtual_nodes: int) -> Allocate:
    if strategy == "averagely":
        return allocate_averagely
    if strategy == "averagely-by-circle":
        return allocate_by_circle
    return partial(allocate_by_hash, virtual_nodes=virtual_nodes)


def _as_group(
    queues: list[BrokerQueue], members: list[str], previous: Mapping[str, list[BrokerQueue]]
) -> tuple[Group, Claims]:
    """The same group for the sticky strategy: a topic's queues on each broker as a topic, all read by all."""
    topics: dict[str, set[int]] = {}
    for queue in queues:
        topics.setdefault(f"{queue.topic}/{queue.broker}", set()).add(queue.number)
    group = Group(
        topics={name: sorted(numbers) for name, numbers in topics.items()},
        members={name: Member(frozenset(topics)) for name in members},
    )
    claims = Claims(
        {name: [(f"{q.topic}/{q.broker}", q.number) for q in given] for name, given in previous.items()}
    )
    return group, claims


def _split(topic: str) -> tuple[str, str]:
    name, _, broker = topic.partition("/")
    return name, broker


def _document(plan: Plan[Any], written: Any, fewest_moves: int | None, elapsed_s: float) -> dict[str, Any]:
    def queues(by_member: Mapping[str, Any]) -> dict[str, list[Any]]:
        return {member: [written(queue) for queue in given] for member, given in by_member.items()}

    return {
        "assignment": queues(plan.assignment),
        "revoke": queues(plan.revoke),
        "assign": queues(plan.assign),
        "metrics": {
            "balance_degree": plan.balance_degree,
            "stickiness": plan.stickiness,
            "moves": plan.moves,
            "fewest_moves": fewest_moves,
            "time_ms": 1e3 * elapsed_s,
        },
    }
