"""What to change about a group, from its state and its members' reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import Report
from flyball.groups.policy.state import GroupState

_OFTEN = 3
"""Departures of a member in the history that are no accident."""
_UNEVEN = 1.15
"""Largest / mean utilisation that is worth a change."""
_FORCED = 0.05
"""Share of hand-overs that may be forced."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A code for programs, a sentence for people."""

    code: str
    sentence: str


def advise(state: GroupState, reports: Mapping[str, Report], *, ordered: bool = True) -> list[Advice]:
    """`reports` are those of live members. `ordered`: whether the messages of a queue must be handled in order."""
    found = list(_advise(state, reports, ordered))
    return found or [Advice("fine", "nothing to change")]


def _advise(state: GroupState, reports: Mapping[str, Report], ordered: bool) -> Iterator[Advice]:
    if not ordered:
        yield Advice(
            "unordered",
            "order is not needed: competing consumers on one queue, or a Kafka share group, balance by "
            "themselves, and no assignment is wanted",
        )
    if not reports:
        yield Advice("no-members", "no member is alive: nothing is read; start one")
        return
    yield from _advise_owners(state, reports)
    yield from _advise_load(state, reports)
    yield from _advise_history(state)


def _advise_owners(state: GroupState, reports: Mapping[str, Report]) -> Iterator[Advice]:
    unknown = sorted({topic for report in reports.values() for topic in report.topics} - state.topics.keys())
    if unknown:
        yield Advice(
            "unknown-topic", f"topic {unknown[0]} has no queues that members know: declare it at the broker"
        )
    unread = [
        (topic, number)
        for topic, count in sorted(state.topics.items())
        for number in range(count)
        if (topic, number) not in state.targets
    ]
    if unread:
        yield Advice(
            "unread",
            f"{len(unread)} queues are read by nobody ({_name(unread[0])} first): strategy {state.rules.strategy} "
            "leaves them out, or no member subscribes to their topic",
        )
    idle = [name for name in state.members if name not in state.targets.values()]
    if idle:
        yield Advice(
            "idle-members",
            f"{len(idle)} of {len(state.members)} members have nothing to read: there are {len(state.targets)} "
            "queues in all; raise the number of queues, or run fewer members",
        )


def _advise_load(state: GroupState, reports: Mapping[str, Report]) -> Iterator[Advice]:
    weights: dict[Queue, float] = {}
    for report in reports.values():
        for queue, load in report.loads.items():
            if load.arrival_per_s is not None and load.service_s is not None:
                weights[queue] = load.arrival_per_s * load.service_s
    if not weights or not state.targets.keys() <= weights.keys():
        return  # not all queues were measured yet
    used = dict.fromkeys(state.members, 0.0)
    for queue, member in state.targets.items():
        used[member] = used.get(member, 0.0) + weights[queue]
    loads = list(used.values())
    largest, mean = max(loads), sum(loads) / len(loads)
    if largest <= _UNEVEN * mean or largest - mean <= state.rules.band:
        return
    heaviest = max(weights, key=lambda queue: (weights[queue], queue))
    if weights[heaviest] > mean + state.rules.band:
        yield Advice(
            "heavy-queue",
            f"queue {_name(heaviest)} alone brings {weights[heaviest]:.2f} s of work a second, more than the fair "
            f"share of a member ({mean:.2f}): no assignment helps; give its topic more queues or better keys",
        )
    elif state.rules.strategy != "load":
        yield Advice(
            "uneven-load",
            f"balanced by count but not by load: the busiest member has {largest / mean:.2f} × the mean; "
            'use strategy = "load"',
        )


def _advise_history(state: GroupState) -> Iterator[Advice]:
    departures = Counter(name for record in state.history for name in record.left)
    flapping = sorted(name for name, times in departures.items() if times >= _OFTEN)
    if flapping:
        name = max(flapping, key=lambda member: (departures[member], member))
        yield Advice(
            "flapping",
            f"member {name} left {departures[name]} times in the last {len(state.history)} plans: raise "
            "session_timeout_s above its pauses and restarts, or find out why it stops",
        )
    clean = sum(record.clean for record in state.history)
    forced = sum(record.forced for record in state.history)
    if forced > _FORCED * (clean + forced):
        yield Advice(
            "forced",
            f"{forced} of {clean + forced} hand-overs were forced, so messages are handled twice: raise "
            "release_timeout_s above what a handler takes, or lower the window",
        )


def _name(queue: Queue) -> str:
    return f"{queue[0]}.{queue[1]}"
