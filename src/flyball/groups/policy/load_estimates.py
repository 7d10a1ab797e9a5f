"""What is known about the queues' loads and the members' capacities, from what members report.

A queue brings work: arrival rate × work of a message. A member does it with a slowdown: the seconds that it is
busy for a second of work, so that its capacity is 1 / slowdown, read from busy time and therefore known at low
load too. Busy time is the time for which handlers work: received × service time. A service time that includes
waiting for other messages grows with the load, and is then taken for a member that has become slower.

A service time is the product of both, the queue's work and its member's slowdown. They are separated so:
queues of one topic have the same work until something else is known, and a change that all queues of a member
share is the member's. So a slowdown is followed within some seconds, the work of a queue over many decisions.

The rate and the work belong to the queue and go with it when it moves: a decision changes nothing in the
estimates, and there is no average of a member's load that would have to catch up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flyball.control.filters import ewma_over_time
from flyball.groups.policy.estimate import SPAN, Estimate, follow, take_sample
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import QueueLoad, Report

VERSION = 1
_JUMP = 5.0
"""standard errors by which a slowdown has changed for certain."""
_SATURATED = 0.97
"""busy for this share of the time: what such a member receives says nothing about what arrives."""


@dataclass(frozen=True, slots=True)
class QueueEstimate:
    """`rate` of arrivals a second; `work_s` of one message; `depth` as it was reported at `depth_at_s`."""

    topic: str
    number: int
    rate: Estimate
    work_s: float | None = None
    depth: int | None = None
    depth_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MemberEstimate:
    """`recent` follows the slowdown at once, with more noise."""

    name: str
    slowdown: Estimate
    recent: Estimate


@dataclass(frozen=True, slots=True)
class LoadState:
    """Everything the leader stores between its decisions; `control.state.to_plain` makes it JSON."""

    version: int = VERSION
    queues: tuple[QueueEstimate, ...] = ()
    members: tuple[MemberEstimate, ...] = ()
    samples: int = 0
    observed_s: float | None = None
    sampled_s: float | None = None
    decided_s: float | None = None


@dataclass(frozen=True, slots=True)
class Filtering:
    """How long averages remember, and how often their errors are sampled.

    A rate comes in bursts, which are no reason to move. A slowdown is averaged for as long, and begins anew at
    its mean of the last `recent_s` as soon as that differs by more than noise explains.
    """

    recent_s: float = 5.0
    memory_s: float = 60.0
    work_s: float = 600.0
    sample_s: float = 5.0


def observe_loads(
    state: LoadState,
    reports: Mapping[str, Report],
    owners: Mapping[Queue, str],
    filtering: Filtering,
    now_s: float,
) -> LoadState:
    """Follow what members report, by name; queues that are not in `owners` and members without a report are
    forgotten.

    `owners`: whom the plan names. The queues of a group are those it has.
    """
    dt_s = 0.0 if state.observed_s is None else now_s - state.observed_s
    if state.observed_s is not None and dt_s <= 0.0:
        return state
    queues = {(one.topic, one.number): one for one in state.queues if (one.topic, one.number) in owners}
    members = {one.name: one for one in state.members if one.name in reports}
    readings = dict(_readings(reports, owners))
    for queue, (_, load) in readings.items():
        found = _follow_rate(queues.get(queue), queue, load, now_s, dt_s, filtering.memory_s)
        if found is not None:
            queues[queue] = found
    _set_first_work(queues, members, readings)
    for member, slowdown in _measured_slowdowns(queues, readings).items():
        members[member] = _follow_slowdown(members.get(member), member, slowdown, dt_s, filtering)
    for queue, (member, load) in readings.items():
        found = queues.get(queue)
        if found is not None and found.work_s is not None and load.service_s and load.arrival_per_s:
            own_s = load.service_s / members[member].slowdown.mean
            work_s = ewma_over_time(found.work_s, own_s, dt_s, filtering.work_s)
            queues[queue] = QueueEstimate(*queue, found.rate, work_s, found.depth, found.depth_at_s)
    state = replace(
        state,
        queues=tuple(queues[queue] for queue in sorted(queues)),
        members=tuple(members[name] for name in sorted(members)),
        observed_s=now_s,
    )
    if state.sampled_s is None:
        return replace(state, sampled_s=now_s)
    return (
        _take_samples(state, filtering, now_s) if now_s - state.sampled_s >= filtering.sample_s - 1e-9 else state
    )


def _take_samples(state: LoadState, filtering: Filtering, now_s: float) -> LoadState:
    every_s, memory_s, recent_s = filtering.sample_s, filtering.memory_s, filtering.recent_s
    return replace(
        state,
        queues=tuple(replace(one, rate=take_sample(one.rate, every_s, memory_s)) for one in state.queues),
        members=tuple(
            replace(
                one,
                slowdown=take_sample(one.slowdown, every_s, memory_s),
                recent=take_sample(one.recent, every_s, recent_s),
            )
            for one in state.members
        ),
        samples=state.samples + 1,
        sampled_s=now_s,
    )


def _follow_slowdown(
    before: MemberEstimate | None, member: str, slowdown: float, dt_s: float, filtering: Filtering
) -> MemberEstimate:
    if before is None:
        return MemberEstimate(member, Estimate(slowdown, dt_s), Estimate(slowdown, dt_s))
    average = follow(before.slowdown, slowdown, dt_s, filtering.memory_s)
    recent = follow(before.recent, slowdown, dt_s, filtering.recent_s)
    if recent.samples >= 2 * SPAN and abs(recent.mean - average.mean) > _JUMP * recent.error:
        average = replace(recent, past=(), samples=2 * SPAN)
    return MemberEstimate(member, average, recent)


def _readings(
    reports: Mapping[str, Report], owners: Mapping[Queue, str]
) -> Iterator[tuple[Queue, tuple[str, QueueLoad]]]:
    """What was measured at each queue, and by whom: its owner if several report, else whoever reads it still."""
    for name, report in reports.items():
        for queue, load in report.loads.items():
            owner = owners.get(queue)
            if owner == name or (owner is not None and not (owner in reports and queue in reports[owner].loads)):
                yield queue, (name, load)


def _follow_rate(
    before: QueueEstimate | None, queue: Queue, load: QueueLoad, now_s: float, dt_s: float, memory_s: float
) -> QueueEstimate | None:
    if load.arrival_per_s is None:
        return before
    rate = load.arrival_per_s
    if before is None:
        return QueueEstimate(*queue, Estimate(rate), depth=load.depth, depth_at_s=now_s)
    if load.depth is not None and before.depth is not None:
        since_s = now_s - before.depth_at_s
        # A longer gap is that of a move, when nobody read the queue.
        if 0.0 < since_s <= 2.0 * dt_s:
            rate = max(0.0, rate + (load.depth - before.depth) / since_s)
    elif load.busy is not None and load.busy >= _SATURATED:
        rate = max(rate, before.rate.mean)
    return replace(before, rate=follow(before.rate, rate, dt_s, memory_s), depth=load.depth, depth_at_s=now_s)


def _set_first_work(
    queues: dict[Queue, QueueEstimate],
    members: Mapping[str, MemberEstimate],
    readings: Mapping[Queue, tuple[str, QueueLoad]],
) -> None:
    """Queues that have no work yet get the mean of their topic, and the first of a topic what they show."""
    new = [
        queue
        for queue, (_, load) in readings.items()
        if queue in queues and queues[queue].work_s is None and load.service_s and load.arrival_per_s
    ]
    if not new:
        return
    shown: dict[str, tuple[float, float]] = {}
    for queue in new:
        member, load = readings[queue]
        slowdown = members[member].slowdown.mean if member in members else 1.0
        rate, work = shown.get(queue[0], (0.0, 0.0))
        arrival_per_s, service_s = load.arrival_per_s or 0.0, load.service_s or 0.0
        shown[queue[0]] = (rate + arrival_per_s, work + arrival_per_s * service_s / slowdown)
    known: dict[str, tuple[int, float]] = {}
    for one in queues.values():
        if one.work_s is not None:
            count, total_s = known.get(one.topic, (0, 0.0))
            known[one.topic] = (count + 1, total_s + one.work_s)
    for queue in new:
        topic = queue[0]
        count, total_s = known.get(topic, (0, 0.0))
        rate, work = shown[topic]
        queues[queue] = replace(queues[queue], work_s=total_s / count if count else work / rate)


def _measured_slowdowns(
    queues: Mapping[Queue, QueueEstimate], readings: Mapping[Queue, tuple[str, QueueLoad]]
) -> dict[str, float]:
    """Busy time / work done, of each member that handled something."""
    busy: dict[str, float] = {}
    done: dict[str, float] = {}
    for queue, (member, load) in readings.items():
        one = queues.get(queue)
        if one is None or one.work_s is None or not load.service_s or not load.arrival_per_s:
            continue
        busy[member] = busy.get(member, 0.0) + load.arrival_per_s * load.service_s
        done[member] = done.get(member, 0.0) + load.arrival_per_s * one.work_s
    return {member: busy[member] / done[member] for member in busy if done[member] > 0.0}
