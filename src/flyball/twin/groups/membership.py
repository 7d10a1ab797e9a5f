"""Membership over an unreliable network: who believes to own which queue, in broker mode and in client mode.

Members are SimPy processes. In broker mode they have sessions in a store, and the leader among them makes the
rounds of `coordination`, exactly as live members do; in client mode they follow `client_mode`. What is counted
is what each member would read at that moment: a queue that several read is owned twice, one that nobody reads
is unowned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flyball.errors import require
from flyball.groups.policy.client_mode import Replica, View, choose_queues, forget_silent, note_heartbeat
from flyball.groups.policy.coordination import Moment, coordinate
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import Report, Session
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import GroupState, Subscription
from flyball.twin.groups.faults import Fault, Network, has_fault

Mode: TypeAlias = Literal["broker", "client"]

SAMPLE_S = 0.1
_TOPIC = "t"
_FASTER = 5
"""How much more often members look while queues change hands, as live ones do."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A group, its network and its faults. `joins_s`: when each member starts.

    `replicas`, `lag_s`: of client mode. Every replica learns of changes later, by up to twice `lag_s`, each by
    its own lag; a member asks a random one.
    """

    queues: int
    joins_s: tuple[float, ...]
    faults: tuple[Fault, ...] = ()
    network: Network = field(default_factory=Network)
    until_s: float = 180.0
    heartbeat_s: float = 1.0
    session_timeout_s: float = 6.0
    rebalance_s: float = 20.0
    drain_s: float = 0.3
    """how long what is in flight needs"""
    replicas: int = 3
    lag_s: float = 1.0

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(f"m{number:02d}" for number in range(len(self.joins_s)))


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who read what: `readers[t, q]` members at sample t; `owner` is the first of them, −1 none."""

    times_s: NDArray[np.float64]
    readers: NDArray[np.int64]
    owner: NDArray[np.int64]
    moves: int
    """that a queue went from one member to another"""

    def twice_s(self, after_s: float = 0.0) -> float:
        """Queue-seconds with more than one reader."""
        return float((self.readers[self.times_s >= after_s] > 1).sum() * SAMPLE_S)

    def unowned_s(self, after_s: float = 0.0) -> float:
        """Queue-seconds without a reader."""
        return float((self.readers[self.times_s >= after_s] == 0).sum() * SAMPLE_S)

    def longest_unowned_s(self, after_s: float = 0.0) -> float:
        """The longest time for which one queue had no reader."""
        longest = 0
        for series in (self.readers[self.times_s >= after_s] == 0).T:
            edges = np.flatnonzero(np.diff(np.concatenate(([0], series.astype(int), [0]))))
            longest = max(longest, int((edges[1::2] - edges[::2]).max(initial=0)))
        return longest * SAMPLE_S


def run_membership(scenario: Scenario, mode: Mode, seed: int, rules: GroupRules | None = None) -> Ownership:
    """Run one group; `rules`: by default sticky in broker mode, averagely in client mode."""
    simpy: Any = require("simpy", "lab")
    environment = simpy.Environment()
    rng = np.random.default_rng(seed)
    if rules is None:
        rules = GroupRules("sticky" if mode == "broker" else "averagely", rebalance_s=scenario.rebalance_s)
    if mode == "broker":
        members = _run_broker(environment, scenario, rules, rng)
    else:
        members = _run_client(environment, scenario, rules, rng)
    samples = _Samples(scenario, members)
    environment.process(samples.take(environment))
    environment.run(until=scenario.until_s)
    return samples.result()


@dataclass
class _Member:
    name: str
    environment: Any
    scenario: Scenario
    rng: np.random.Generator
    reading: dict[Queue, int] = field(default_factory=dict)

    def suffers(self, kind: Literal["down", "paused", "cut off"]) -> bool:
        return has_fault(self.scenario.faults, kind, self.name, self.environment.now)

    def reads(self) -> set[Queue]:
        """What it takes messages from at this moment."""
        return set() if self.suffers("down") or self.suffers("paused") else set(self.reading)

    def draw_call_s(self) -> float | None:
        return None if self.suffers("cut off") else self.scenario.network.draw_delay_s(self.rng)

    def stand_still(self) -> Iterator[Any]:
        """Wait until a pause is over."""
        while self.suffers("paused"):
            yield self.environment.timeout(SAMPLE_S)


# --- broker mode -----------------------------------------------------------------------------------------


@dataclass
class _Store:
    sessions: dict[tuple[str, int], tuple[float, Report]] = field(default_factory=dict)
    state: GroupState = field(default_factory=GroupState)
    candidates: dict[str, float] = field(default_factory=dict)
    holder: str | None = None
    lease_token: int = 0
    lease_until_s: float = 0.0
    tokens: int = 0

    def begin(self, member: str, report: Report, until_s: float) -> int:
        self.tokens += 1
        self.sessions[member, self.tokens] = (until_s, report)
        return self.tokens

    def renew(self, member: str, token: int, report: Report, now_s: float, until_s: float) -> bool:
        known = self.sessions.get((member, token))
        if known is None or known[0] <= now_s:
            return False
        self.sessions[member, token] = (until_s, report)
        return True

    def campaign(self, candidate: str, now_s: float, ttl_s: float) -> int | None:
        """The token of the lease; the smallest live candidate takes a vacant one, and nobody one that is held."""
        self.candidates[candidate] = now_s + ttl_s
        if self.holder != candidate or self.lease_until_s <= now_s:
            vacant = self.holder is None or self.lease_until_s <= now_s
            alive = [name for name, until_s in self.candidates.items() if until_s > now_s]
            if not vacant or candidate != min(alive):
                return None
            self.holder, self.lease_token = candidate, self.lease_token + 1
        self.lease_until_s = now_s + ttl_s
        return self.lease_token

    def holds(self, token: int, now_s: float) -> bool:
        return token == self.lease_token and now_s < self.lease_until_s

    def snapshot(self, now_s: float) -> list[Session]:
        return [Session(m, token, now_s < until, report) for (m, token), (until, report) in self.sessions.items()]


def _run_broker(
    environment: Any, scenario: Scenario, rules: GroupRules, rng: np.random.Generator
) -> Sequence[_Member]:
    store = _Store()
    members = []
    for name, start_s in zip(scenario.members, scenario.joins_s, strict=True):
        member = _BrokerMember(name, environment, scenario, rng, store=store, rules=rules)
        members.append(member)
        environment.process(member.run(start_s))
        environment.process(member.lead(start_s))
    return members


@dataclass
class _BrokerMember(_Member):
    store: _Store = field(default_factory=_Store)
    rules: GroupRules = field(default_factory=GroupRules)
    token: int | None = None
    ended: int = 0
    """its session before, which it ends itself if it was running all the time"""
    valid_until_s: float = 0.0
    round: int = 0
    drains: dict[Queue, float] = field(default_factory=dict)

    def reads(self) -> set[Queue]:
        # It looks at its own clock before it takes a message, also after a pause.
        return super().reads() if self.environment.now < self.valid_until_s else set()

    def run(self, start_s: float) -> Iterator[Any]:
        yield self.environment.timeout(start_s)
        while True:
            yield from self.stand_still()
            if self.suffers("down"):
                self._lose()
                yield self.environment.timeout(SAMPLE_S)
                continue
            guard_s = self.scenario.session_timeout_s / 3.0
            if self.token is not None and self.environment.now >= self.valid_until_s - guard_s:
                self.reading.clear()  # so that nobody has to wait for it
            if self.token is not None and self.environment.now >= self.valid_until_s:
                self._lose()
            yield from self._heartbeat()
            busy = self.token is None or not self.store.state.settled or bool(self.drains)
            yield self.environment.timeout(self.scenario.heartbeat_s / (_FASTER if busy else 1))

    def lead(self, start_s: float) -> Iterator[Any]:
        env, known, lease = self.environment, GroupState(), None
        yield env.timeout(start_s)
        while True:
            yield env.timeout(self.scenario.heartbeat_s / _FASTER)
            delay_s = self.draw_call_s()
            if self.suffers("down") or self.suffers("paused") or delay_s is None:
                continue
            token = self.store.campaign(self.name, env.now, self.scenario.session_timeout_s)
            if token is None:
                continue
            if token != lease:
                known, lease = self.store.state, token
            after = coordinate(known, self.store.snapshot(env.now), self.rules, Moment(env.now, env.now))
            yield env.timeout(delay_s)
            yield from self.stand_still()  # a pause between reading and writing
            if self.suffers("down") or not self.store.holds(token, env.now):
                lease = None
                continue
            if after.round != known.round:
                self.store.state = after
            known = after

    def _heartbeat(self) -> Iterator[Any]:
        env, called_s = self.environment, self.environment.now
        report = Report({_TOPIC: self.scenario.queues}, dict(self.reading), self.round)
        delay_s = self.draw_call_s()
        if delay_s is None:
            return
        yield env.timeout(delay_s)
        yield from self.stand_still()
        timeout_s = self.scenario.session_timeout_s
        if self.token is None:
            self.store.sessions.pop((self.name, self.ended), None)  # nobody has to wait until it expires
            self.token = self.store.begin(self.name, report, env.now + timeout_s)
        elif not self.store.renew(self.name, self.token, report, env.now, env.now + timeout_s):
            self._lose()
            return
        self.valid_until_s = called_s + timeout_s
        state = self.store.state
        if state.tokens.get(self.name) == self.token:
            self.round = state.round
            self._follow(state.granted_to(self.name, self.token))

    def _follow(self, granted: dict[Queue, int]) -> None:
        now_s = self.environment.now
        for queue in list(self.reading):
            if queue not in granted and now_s >= self.drains.setdefault(queue, now_s + self.scenario.drain_s):
                del self.reading[queue], self.drains[queue]
        self.drains = {queue: until_s for queue, until_s in self.drains.items() if queue in self.reading}
        self.reading.update({q: generation for q, generation in granted.items() if q not in self.drains})

    def _lose(self) -> None:
        if self.token is not None and not self.suffers("down"):
            self.ended = self.token
        self.token, self.valid_until_s, self.round = None, 0.0, 0
        self.reading.clear()
        self.drains.clear()


# --- client mode -----------------------------------------------------------------------------------------


@dataclass
class _ReplicaModel:
    """A replica, and the older view that its readers see."""

    environment: Any
    lag_s: float
    members: list[_ClientMember]
    replica: Replica = field(default_factory=Replica)
    view: View = field(default_factory=View)
    """as readers see it"""

    def change(self, replica: Replica) -> None:
        if replica.view != self.replica.view:
            self.environment.process(self._publish(replica.view))
        self.replica = replica

    def _publish(self, view: View) -> Iterator[Any]:
        """A notice to members that there is something new to see; it may be lost, too."""
        yield self.environment.timeout(self.lag_s)
        self.view = view
        for member in self.members:
            if member.draw_call_s() is not None:
                member.notified = True


def _run_client(
    environment: Any, scenario: Scenario, rules: GroupRules, rng: np.random.Generator
) -> Sequence[_Member]:
    members: list[_ClientMember] = []
    lags_s = rng.uniform(0.0, 2.0 * scenario.lag_s, scenario.replicas)
    replicas = [_ReplicaModel(environment, float(lag_s), members) for lag_s in lags_s]
    for name, start_s in zip(scenario.members, scenario.joins_s, strict=True):
        member = _ClientMember(name, environment, scenario, rng, replicas, rules)
        members.append(member)
        environment.process(member.run(start_s))
    environment.process(_forget_silent(environment, scenario, replicas))
    return members


def _forget_silent(environment: Any, scenario: Scenario, replicas: list[_ReplicaModel]) -> Iterator[Any]:
    while True:
        yield environment.timeout(scenario.heartbeat_s)
        for one in replicas:
            one.change(forget_silent(one.replica, scenario.session_timeout_s, environment.now))


class _ClientMember(_Member):
    def __init__(
        self,
        name: str,
        environment: Any,
        scenario: Scenario,
        rng: np.random.Generator,
        replicas: list[_ReplicaModel],
        rules: GroupRules,
    ) -> None:
        super().__init__(name, environment, scenario, rng)
        self._replicas, self._rules = replicas, rules
        self.notified = False
        self._fetched_s: float | None = None

    def run(self, start_s: float) -> Iterator[Any]:
        env = self.environment
        yield env.timeout(start_s)
        subscription = Subscription(frozenset({_TOPIC}))
        while True:
            yield from self.stand_still()
            if self.suffers("down"):
                self.reading.clear()
                self._fetched_s = None
                yield env.timeout(SAMPLE_S)
                continue
            for one in self._replicas:
                if self.draw_call_s() is not None:
                    topics = {_TOPIC: self.scenario.queues}
                    one.change(note_heartbeat(one.replica, self.name, subscription, topics, env.now))
            due = self._fetched_s is None or env.now - self._fetched_s >= self.scenario.rebalance_s
            if due or self.notified:
                yield from self._rebalance()
            yield env.timeout(self.scenario.heartbeat_s / _FASTER if self.notified else self.scenario.heartbeat_s)

    def _rebalance(self) -> Iterator[Any]:
        env = self.environment
        delay_s = self.draw_call_s()
        if delay_s is None:
            return
        self.notified = False
        replica = self._replicas[int(self.rng.integers(len(self._replicas)))]
        view = replica.view
        yield env.timeout(delay_s)
        yield from self.stand_still()
        self._fetched_s = env.now
        self.reading = dict.fromkeys(choose_queues(view, self.name, self._rules), 0)


# --- what is counted -------------------------------------------------------------------------------------


class _Samples:
    def __init__(self, scenario: Scenario, members: Sequence[_Member]) -> None:
        self._queues = [(_TOPIC, number) for number in range(scenario.queues)]
        self._members = members
        self._times_s: list[float] = []
        self._readers: list[list[int]] = []
        self._owners: list[list[int]] = []
        self._last = [-1] * scenario.queues
        self._moves = 0

    def take(self, environment: Any) -> Iterator[Any]:
        while True:
            yield environment.timeout(SAMPLE_S)
            reads = [member.reads() for member in self._members]
            by_queue = [[n for n, read in enumerate(reads) if queue in read] for queue in self._queues]
            for index, found in enumerate(by_queue):
                if found and self._last[index] not in found:
                    self._moves += self._last[index] >= 0
                    self._last[index] = found[0]
            self._times_s.append(environment.now)
            self._readers.append([len(found) for found in by_queue])
            self._owners.append([found[0] if found else -1 for found in by_queue])

    def result(self) -> Ownership:
        return Ownership(np.array(self._times_s), np.array(self._readers), np.array(self._owners), self._moves)
