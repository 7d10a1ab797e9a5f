"""One round of a group's coordinator: from its state and the members' sessions to the next state.

Ranked goals: no two sessions may read a queue at once (`hand_over`); every queue that somebody reads has an owner
soon; few queues move; few plans are made.

A plan is made when members or topics change: at once, and then `coalesce_s` after the plan before, so that of many
members that join together the first has work and the others cause one more plan. It is also made every
`rebalance_s`. A member is in the group as long as its session lasts: one that is silent, or that went away and may
come back, keeps its queues, and a new session of it gets them without anything being moved. One that leaves is out
at once.

Everything follows from the arguments: another leader goes on where the one before stopped, and a round without
news returns the state it was given, but for `planned_s` and what was learned about loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flyball.groups.policy.group import Queue
from flyball.groups.policy.hand_over import adopt_claims, hand_over
from flyball.groups.policy.load_estimates import observe_loads
from flyball.groups.policy.reports import HandOvers, Report, Session
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import HISTORY, Grant, GroupState, PlanRecord, Revocation, Subscription
from flyball.groups.policy.strategies import Measured, StrategyPlan, load_options, plan_group

_NAMES = 3
"""Members that a reason names; of more it says how many."""
_LISTED = 20
"""Members that a record of the history names."""


@dataclass(frozen=True, slots=True)
class Moment:
    """`now_s`: by the store's clock, which all leaders share. `time_s`: seconds since 1970, for people."""

    now_s: float
    time_s: float


def coordinate(state: GroupState, sessions: Iterable[Session], rules: GroupRules, moment: Moment) -> GroupState:
    """Return the state after this round. It has to be stored if its `round` is a new one."""
    alive = sorted((s for s in sessions if s.alive), key=lambda s: (s.member, s.token))
    state = _restore(state, alive)
    next_round = state.round + 1
    tokens = _newest_tokens(state, alive)
    newest = {s.member: s for s in alive if tokens[s.member] == s.token}
    members = {
        name: Subscription(frozenset(s.report.topics), s.report.rack, s.report.queues)
        for name, s in newest.items()
        if s.report.stage != "leaving"
    }
    topics = _count_queues([newest[name].report for name in members], state.topics)
    reports = {name: newest[name].report for name in members}
    if rules.strategy == "load":
        load = observe_loads(state.load, reports, state.targets, load_options(rules).filtering, moment.now_s)
        state = replace(state, load=load)
    planned = _plan(state, members, topics, reports, rules, moment)
    handed = hand_over(planned.grants, planned.revocations, planned.targets, alive, tokens, next_round)
    hand_overs, reported = _count_hand_overs(state, newest)
    after = replace(
        planned,
        grants=handed.grants,
        revocations=handed.revocations,
        tokens=tokens,
        reported=reported,
        history=_count_into(planned.history, hand_overs, handed.expired),
    )
    return after if _same(state, after) else replace(after, round=next_round)


def _restore(state: GroupState, alive: list[Session]) -> GroupState:
    """Go on from what members say where the state is older than they are, or does not know what they own."""
    reported = max((max(s.report.round, *s.report.owned.values(), 0) for s in alive), default=0)
    tokens = _newest_tokens(state, alive)
    if reported > state.round:
        # The state was lost, or restored from a copy: its grants may be outdated, those of the reports are not.
        adopted = adopt_claims({}, {}, alive, tokens)
        doubtful = {**state.grants, **{queue: r.grant for queue, r in state.revocations.items()}}
        state = replace(
            state,
            round=reported,
            grants={},
            revocations={q: Revocation(g, reported + 1) for q, g in doubtful.items() if q not in adopted},
        )
    else:
        adopted = adopt_claims(state.grants, state.revocations, alive, tokens)
    if not adopted:
        return state
    targets = {**{queue: grant.member for queue, grant in adopted.items()}, **state.targets}
    return replace(state, grants={**state.grants, **adopted}, targets=targets)


def _newest_tokens(state: GroupState, alive: list[Session]) -> dict[str, int]:
    tokens: dict[str, int] = {}
    for session in alive:
        known = tokens.get(session.member, state.tokens.get(session.member, 0))
        tokens[session.member] = max(known, session.token)
    return tokens


def _count_queues(reports: list[Report], before: Mapping[str, int]) -> dict[str, int]:
    """While members disagree, as when a topic grows, the largest number holds; if nobody knows, the one before."""
    counts: dict[str, int] = {}
    for report in reports:
        for topic, count in report.topics.items():
            if count is not None:
                counts[topic] = max(count, counts.get(topic, 0))
    unknown = {topic for report in reports for topic in report.topics} - counts.keys()
    return {**counts, **{topic: before[topic] for topic in unknown if topic in before}}


def _plan(
    state: GroupState,
    members: Mapping[str, Subscription],
    topics: Mapping[str, int],
    reports: Mapping[str, Report],
    rules: GroupRules,
    moment: Moment,
) -> GroupState:
    """The state with a new plan, if it is time for one."""
    changed = members != state.members or topics != state.topics or rules != state.rules
    # A time after now is from before a restart of the store's host.
    since_s = None if state.planned_s is None else moment.now_s - state.planned_s
    wait_s = rules.coalesce_s if changed else rules.rebalance_s
    if not members or (since_s is not None and 0 <= since_s < wait_s):
        return state
    made = plan_group(members, topics, state.targets, rules, Measured(reports, state.load, moment.now_s))
    targets = {queue: member for member, queues in made.plan.assignment.items() for queue in queues}
    planned = replace(
        state,
        targets=targets,
        members=members,
        topics=topics,
        rules=rules,
        planned_s=moment.now_s,
        load=made.load,
    )
    if not changed and targets == state.targets:
        return planned
    record = PlanRecord(
        round=state.round + 1,
        time_s=moment.time_s,
        reason=_describe(state, members, topics, rules, made),
        members=len(members),
        queues=sum(topics.values()),
        moves=made.plan.moves,
        fewest_moves=made.fewest_moves,
        balance_degree=made.plan.balance_degree,
        stickiness=made.plan.stickiness,
        joined=tuple(sorted(members.keys() - state.members.keys())[:_LISTED]),
        left=tuple(sorted(state.members.keys() - members.keys())[:_LISTED]),
    )
    return replace(planned, history=(*state.history, record)[-HISTORY:])


def _describe(
    before: GroupState,
    members: Mapping[str, Subscription],
    topics: Mapping[str, int],
    rules: GroupRules,
    made: StrategyPlan,
) -> str:
    """The reason of a plan in words."""
    both = members.keys() & before.members.keys()
    parts = [
        _names(members.keys() - before.members.keys(), "joined"),
        _names(before.members.keys() - members.keys(), "left"),
        _names({name for name in both if members[name] != before.members[name]}, "changed its subscription"),
    ]
    for topic in sorted(topics.keys() | before.topics.keys()):
        if topics.get(topic) != before.topics.get(topic):
            parts.append(f"{topic} has {topics.get(topic, 0)} queues instead of {before.topics.get(topic, 0)}")
    if before.round and rules != before.rules:
        other = rules.strategy != before.rules.strategy
        parts.append(f"the strategy is {rules.strategy}" if other else "the configuration changed")
    said = [part for part in parts if part]
    if len(said) > _NAMES:
        said[_NAMES:] = [f"{len(said) - _NAMES} more changes"]
    said += [reason.sentence for reason in made.reasons[:_NAMES]]
    return "; ".join(said) or "at its interval"


def _names(names: Iterable[str], what: str) -> str:
    listed = sorted(names)
    if len(listed) > _NAMES:
        return f"{len(listed)} members {what}"
    return f"{', '.join(listed)} {what}" if listed else ""


def _count_hand_overs(state: GroupState, newest: Mapping[str, Session]) -> tuple[HandOvers, dict[str, HandOvers]]:
    """What members have counted since the round before; a new session begins at zero."""
    clean = forced = 0
    reported: dict[str, HandOvers] = {}
    for name, session in newest.items():
        now = reported[name] = session.report.hand_overs
        same = state.tokens.get(name) == session.token
        before = state.reported.get(name, HandOvers()) if same else HandOvers()
        clean += max(0, now.clean - before.clean)
        forced += max(0, now.forced - before.forced)
    return HandOvers(clean, forced), reported


def _count_into(history: tuple[PlanRecord, ...], counted: HandOvers, expired: int) -> tuple[PlanRecord, ...]:
    if not history or not (counted.clean or counted.forced or expired):
        return history
    last = history[-1]
    last = replace(
        last,
        clean=last.clean + counted.clean,
        forced=last.forced + counted.forced,
        expired=last.expired + expired,
    )
    return (*history[:-1], last)


def _same(before: GroupState, after: GroupState) -> bool:
    return replace(after, planned_s=before.planned_s, load=before.load) == before


def grants_by_member(grants: Mapping[Queue, Grant]) -> dict[str, dict[Queue, int]]:
    """The queues of each member that has some, with their generations."""
    by_member: dict[str, dict[Queue, int]] = {}
    for queue in sorted(grants):
        by_member.setdefault(grants[queue].member, {})[queue] = grants[queue].generation
    return by_member
