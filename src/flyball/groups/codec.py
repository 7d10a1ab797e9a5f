"""Reports and the state of a group as JSON documents, for the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from flyball.control.state import from_plain, to_plain
from flyball.errors import InvalidValue
from flyball.groups.policy.group import Queue
from flyball.groups.policy.load_estimates import LoadState
from flyball.groups.policy.reports import HandOvers, QueueLoad, Report
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import Grant, GroupState, PlanRecord, Revocation, Subscription
from flyball.store.protocol import NewerSchema

FORMAT = 1
"""Grows when an older Flyball could not read what this one writes."""

Value = TypeVar("Value")


def encode_report(report: Report) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "topics": dict(report.topics),
        "owned": _by_topic(report.owned),
        "round": report.round,
        "stage": report.stage,
        "rack": report.rack,
        "window": report.window,
        "switches": report.switches,
        "loads": _by_topic({queue: asdict(load) for queue, load in report.loads.items()}),
        "queues": sorted(report.queues),
        "hand_overs": asdict(report.hand_overs),
    }


def decode_report(document: Mapping[str, Any]) -> Report:
    _check_format(document, "a member's report")
    return Report(
        topics=document["topics"],
        owned=dict(_queues(document["owned"])),
        round=document["round"],
        stage=document["stage"],
        rack=document["rack"],
        window=document["window"],
        switches=document["switches"],
        loads={queue: QueueLoad(**load) for queue, load in _queues(document["loads"])},
        queues=frozenset((topic, number) for topic, number in document["queues"]),
        hand_overs=HandOvers(**document["hand_overs"]),
    )


def encode_state(state: GroupState) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "round": state.round,
        "targets": _by_topic(state.targets),
        "grants": _by_topic({queue: _encode_grant(grant) for queue, grant in state.grants.items()}),
        "revocations": _by_topic(
            {queue: [*_encode_grant(entry.grant), entry.round] for queue, entry in state.revocations.items()}
        ),
        "members": {
            name: {"topics": sorted(member.topics), "rack": member.rack, "queues": sorted(member.queues)}
            for name, member in state.members.items()
        },
        "topics": dict(state.topics),
        "rules": asdict(state.rules),
        "tokens": dict(state.tokens),
        "reported": {name: asdict(counted) for name, counted in state.reported.items()},
        "planned_s": state.planned_s,
        "history": [asdict(record) for record in state.history],
        "load": to_plain(state.load),
    }


def decode_state(document: Mapping[str, Any]) -> GroupState:
    _check_format(document, "the group's state")
    return GroupState(
        round=document["round"],
        targets=dict(_queues(document["targets"])),
        grants={queue: Grant(*values) for queue, values in _queues(document["grants"])},
        revocations={
            queue: Revocation(Grant(*values[:-1]), values[-1])
            for queue, values in _queues(document["revocations"])
        },
        members={
            name: Subscription(
                frozenset(member["topics"]),
                member["rack"],
                frozenset((topic, number) for topic, number in member["queues"]),
            )
            for name, member in document["members"].items()
        },
        topics=document["topics"],
        rules=_decode_rules(document["rules"]),
        tokens=document["tokens"],
        reported={name: HandOvers(**counted) for name, counted in document["reported"].items()},
        planned_s=document["planned_s"],
        history=tuple(_decode_record(record) for record in document["history"]),
        load=_decode_load(document["load"]),
    )


def _decode_rules(document: Mapping[str, Any]) -> GroupRules:
    return GroupRules(
        **{
            **document,
            "racks": {topic: tuple(racks) for topic, racks in document["racks"].items()},
            "brokers": {topic: tuple(brokers) for topic, brokers in document["brokers"].items()},
            "rooms": tuple(document["rooms"]),
        }
    )


def _decode_record(document: Mapping[str, Any]) -> PlanRecord:
    return PlanRecord(**{**document, "joined": tuple(document["joined"]), "left": tuple(document["left"])})


def _decode_load(plain: Any) -> LoadState:
    """What was learned about loads, unless it was learned in another way: then it is learned again."""
    try:
        found = from_plain(LoadState, plain)
    except InvalidValue:
        return LoadState()
    return found if found.version == LoadState().version else LoadState()


def _encode_grant(grant: Grant) -> list[Any]:
    return [getattr(grant, field.name) for field in fields(grant)]


def _by_topic(values: Mapping[Queue, Value]) -> dict[str, list[tuple[int, Value]]]:
    """{("orders", 3): v} as {"orders": [[3, v]]}: names of topics are written once."""
    by_topic: dict[str, list[tuple[int, Value]]] = {}
    for (topic, number), value in sorted(values.items(), key=lambda item: item[0]):
        by_topic.setdefault(topic, []).append((number, value))
    return by_topic


def _queues(by_topic: Mapping[str, Iterable[tuple[int, Any]]]) -> Iterable[tuple[Queue, Any]]:
    return (((topic, number), value) for topic, listed in by_topic.items() for number, value in listed)


def _check_format(document: Mapping[str, Any], what: str) -> None:
    if document["format"] > FORMAT:
        raise NewerSchema(
            f"{what} has format {document['format']}, this Flyball supports formats up to {FORMAT}; "
            "use the same Flyball in all members"
        )
