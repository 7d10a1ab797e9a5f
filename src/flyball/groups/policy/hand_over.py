"""Hand queues over in two phases: a queue gets a new owner only when nobody else may be reading it any more.

Ranked goals: no two sessions may read a queue at once; a queue whose owner stays is never touched; a queue that is
free gets its owner at once.

A queue is revoked by leaving its owner's grants. It is free when the owner, having seen that, no longer lists it
in its report, or when the owner's session is over. Sessions that list a queue without a grant (the state was lost,
or an older session of a member) block it in the same way. Where the broker itself drains and switches, grants are
priorities only, and change hands at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import QueueLoad, Session
from flyball.groups.policy.state import Grant, Revocation


@dataclass(frozen=True, slots=True)
class HandOver:
    """Who may read what from now on; `expired`: queues whose owner's session ended while it owned them."""

    grants: Mapping[Queue, Grant]
    revocations: Mapping[Queue, Revocation]
    expired: int


def hand_over(
    grants: Mapping[Queue, Grant],
    revocations: Mapping[Queue, Revocation],
    targets: Mapping[Queue, str],
    sessions: Iterable[Session],
    tokens: Mapping[str, int],
    this_round: int,
) -> HandOver:
    """Bring grants towards `targets`. `sessions` are alive, `tokens` name the one that counts of each member."""
    alive = {(session.member, session.token): session for session in sessions}
    newest = {member: alive[member, token] for member, token in tokens.items() if (member, token) in alive}
    switches = bool(newest) and all(session.report.switches for session in newest.values())
    kept: dict[Queue, Grant] = {}
    waiting: dict[Queue, Revocation] = {}
    expired = 0
    for queue, revocation in revocations.items():
        session = alive.get((revocation.grant.member, revocation.grant.token))
        if not switches and _may_be_reading(session, queue, revocation.round):
            waiting[queue] = revocation
        expired += session is None
    for queue, grant in grants.items():
        session = alive.get((grant.member, grant.token))
        if session is None or (session.report.stage != "active" and queue not in session.report.owned):
            expired += session is None
        elif targets.get(queue) == grant.member and tokens.get(grant.member) == grant.token:
            kept[queue] = grant
        elif not switches:
            waiting[queue] = Revocation(grant, this_round)
    claimed = (
        set() if switches else {q for session in alive.values() for q in session.report.owned if q not in kept}
    )
    for queue in sorted(targets.keys() - kept.keys() - waiting.keys() - claimed):
        owner = newest.get(targets[queue])
        if owner is not None and owner.report.stage == "active":
            kept[queue] = Grant(owner.member, owner.token, this_round)
    return HandOver(kept, waiting, expired)


def adopt_claims(
    grants: Mapping[Queue, Grant],
    revocations: Mapping[Queue, Revocation],
    sessions: Iterable[Session],
    tokens: Mapping[str, int],
) -> dict[Queue, Grant]:
    """Return the grants of queues that members own and the state does not know: it was lost or restored.

    Of several claims to a queue the one with the highest generation holds; if two share it, nobody owns the queue.
    """
    best: dict[Queue, tuple[int, Grant | None]] = {}
    for session in sessions:
        if tokens.get(session.member) != session.token or session.report.stage != "active":
            continue
        for queue, generation in session.report.owned.items():
            if queue in grants or queue in revocations:
                continue
            highest, _ = best.get(queue, (None, None))
            if highest is None or generation > highest:
                best[queue] = (generation, Grant(session.member, session.token, generation))
            elif generation == highest:
                best[queue] = (generation, None)
    return {queue: grant for queue, (_, grant) in best.items() if grant is not None}


def release_deadline_s(load: QueueLoad | None, window: int, longest_s: float) -> float:
    """How long messages in flight may delay the release of a queue: 99 of 100 residence times, one behind another.

    >>> release_deadline_s(QueueLoad(residence_p99_s=0.05), 20, 10.0)
    1.0
    >>> release_deadline_s(None, 20, 10.0)
    10.0
    """
    if load is None or load.residence_p99_s is None:
        return longest_s
    return min(load.residence_p99_s * max(1, window), longest_s)


def _may_be_reading(session: Session | None, queue: Queue, revoked_in: int) -> bool:
    if session is None:
        return False
    report = session.report
    return queue in report.owned or (report.stage == "active" and report.round < revoked_in)
