"""Members of a group as a model: sessions that join, stop, pause and lose heartbeats, on a clock of whole ticks.

What a session does in the model is what `flyball.groups.member` does: it checks its own time to live before
anything else, applies the newest state, and then reports.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.groups.policy.coordination import Moment, coordinate
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers, Report, Session, Stage
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import GroupState

SESSION_TICKS = 6
MAX_DRAIN_TICKS = 3


@dataclass
class SimulatedSession:
    member: str
    token: int
    topics: Mapping[str, int | None]
    until: int
    reading: dict[Queue, int] = field(default_factory=dict)
    drains: dict[Queue, int] = field(default_factory=dict)
    """Ticks until what is in flight of a queue is settled."""
    round: int = 0
    stage: Stage = "active"
    running: bool = True
    paused: bool = False
    connected: bool = True
    report: Report | None = None

    def entitled(self, now: int) -> set[Queue]:
        """What it reads or may go on reading when it continues."""
        return set(self.reading) if self.running and now < self.until else set()


class SimulatedGroup:
    """Sessions, the store they share, and a leader whose memory ends when another takes over."""

    def __init__(self, seed: int, topics: Mapping[str, int], rules: GroupRules | None = None) -> None:
        self.rng = random.Random(seed)
        self.topics = dict(topics)
        self.rules = rules or GroupRules(coalesce_s=1.0, rebalance_s=20.0)
        self.now = 0
        self.sessions: list[SimulatedSession] = []
        self.stored: dict[tuple[str, int], tuple[int, Report]] = {}
        self.state = GroupState()
        self.leader_memory = self.state
        self.owners_before: dict[Queue, str] = {}

    def join(self, member: str, topics: list[str] | None = None) -> SimulatedSession:
        token = 1 + len(self.sessions)
        names = sorted(self.topics) if topics is None else topics
        session = SimulatedSession(
            member, token, {name: self.topics[name] for name in names}, self.now + SESSION_TICKS
        )
        self.sessions.append(session)
        self._report(session)
        return session

    def running(self) -> list[SimulatedSession]:
        return [session for session in self.sessions if session.running]

    def change_leader(self) -> None:
        self.leader_memory = self.state

    def tick(self) -> None:
        self.now += 1
        seen = self._snapshot()
        for session in self.sessions:
            if session.running and not session.paused and self.now >= session.until:
                self._end(session)
        active = [session for session in self.sessions if session.running and not session.paused]
        self.rng.shuffle(active)
        for session in active:
            self._act(session)
        after = coordinate(self.leader_memory, seen, self.rules, Moment(float(self.now), 1e9 + self.now))
        if after.round != self.leader_memory.round:
            self.state = after
        self.leader_memory = after

    def check_single_owner(self) -> None:
        owners: dict[Queue, str] = {}
        for session in self.sessions:
            for queue in session.entitled(self.now):
                name = f"{session.member}#{session.token}"
                assert queue not in owners, f"{queue} is read by {owners[queue]} and {name} at {self.now}"
                owners[queue] = name

    def readers(self) -> dict[Queue, str]:
        return {queue: s.member for s in self.sessions for queue in s.entitled(self.now)}

    def _act(self, session: SimulatedSession) -> None:
        if session.connected:
            if any(other.member == session.member and other.token > session.token for other in self.sessions):
                self._end(session)
                return
            session.round = self.state.round
            granted = self.state.granted_to(session.member, session.token) if session.stage == "active" else {}
            for queue in list(session.reading):
                if queue not in granted:
                    session.drains.setdefault(queue, self.rng.randint(0, MAX_DRAIN_TICKS))
            session.reading.update({q: g for q, g in granted.items() if q not in session.drains})
        for queue in list(session.drains):
            session.drains[queue] -= 1
            if session.drains[queue] < 0:
                del session.drains[queue]
                session.reading.pop(queue, None)
        if session.connected and (session.stage == "active" or session.reading or session.report is None):
            session.until = self.now + SESSION_TICKS
            self._report(session)
        elif session.connected and session.report is not None and session.report.owned:
            self._report(session)  # the last one: everything is released
            session.running = False

    def _report(self, session: SimulatedSession) -> None:
        topics = {name: self.topics[name] for name in session.topics}
        session.report = Report(
            topics, dict(session.reading), session.round, session.stage, hand_overs=HandOvers()
        )
        self.stored[session.member, session.token] = (session.until, session.report)

    def _end(self, session: SimulatedSession) -> None:
        session.running = False
        session.reading.clear()
        session.drains.clear()

    def _snapshot(self) -> list[Session]:
        listed = [
            Session(member, token, self.now < until, report)
            for (member, token), (until, report) in self.stored.items()
        ]
        self.rng.shuffle(listed)
        return listed
