"""Carries out the decisions of a cluster's policy, at once, or late and with failures, for the tests of events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from flyball.cluster.policy.decisions import AddNode, Decision, MoveMessages, MoveSession
from flyball.cluster.policy.events import (
    AddFailed,
    Approve,
    Drain,
    Event,
    Grow,
    Join,
    Leave,
    MessagesMoved,
    MoveFailed,
    NodeAdded,
    NodeBack,
    NodeLost,
    Reading,
    Reject,
    Resume,
    SessionMoved,
    Shrink,
    Stop,
    Tick,
)
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Host, Node, State, Status
from flyball.cluster.policy.step import step

Wanted = TypeVar("Wanted")


def make_state(*capacities: int | None, hosts: Iterable[Host] = ()) -> State:
    """Nodes a, b, c, … with these capacities."""
    nodes = {}
    for at, capacity in enumerate(capacities):
        name = chr(ord("a") + at) if at < 26 else f"n{at:05}"
        nodes[name] = Node(name, capacity, is_configured=capacity is not None)
    return State(nodes=nodes, hosts={host.name: host for host in hosts})


def select(decisions: Iterable[Decision], kind: type[Wanted]) -> list[Wanted]:
    return [decision for decision in decisions if isinstance(decision, kind)]


@dataclass
class Cluster:
    """The policy with everything it decides carried out at once; `log` has all decisions."""

    rules: Rules
    state: State
    now_s: float = 0.0
    log: list[Decision] = field(default_factory=list)
    joined: int = 0

    def send(self, event: Event) -> list[Decision]:
        """One event, and those that follow from carrying its decisions out; all decisions."""
        queue: list[Event] = [event]
        found: list[Decision] = []
        for _ in range(100_000):
            if not queue:
                break
            self.state, decisions = step(self.rules, self.state, queue.pop(0))
            found += decisions
            queue += self._carry_out(decisions)
        else:
            raise AssertionError("decisions without end")
        self.log += found
        return found

    def _carry_out(self, decisions: Iterable[Decision]) -> list[Event]:
        events: list[Event] = []
        for decision in decisions:
            match decision:
                case MoveSession(session=id, target=target):
                    events.append(SessionMoved(self.now_s, id, target))
                case AddNode(node=name):
                    events.append(NodeAdded(self.now_s, name))
                case MoveMessages(source=source, target=target, count=count):
                    events.append(MessagesMoved(self.now_s, source, target, count))
                case _:
                    pass
        return events

    def join(self, role: str, count: int = 1) -> list[Decision]:
        found: list[Decision] = []
        for _ in range(count):
            self.joined += 1
            found += self.send(Join(self.now_s, f"s{self.joined}", role))  # type: ignore[arg-type]
        return found

    def tick(self, seconds: float = 1.0, **lengths: int) -> list[Decision]:
        self.now_s += seconds
        return self.send(Tick(self.now_s, {name: Reading(length) for name, length in lengths.items()}))

    def counts(self) -> dict[str, tuple[int, int]]:
        return {
            name: (self.state.producers[name], self.state.consumers[name]) for name in sorted(self.state.nodes)
        }


@dataclass
class RandomWorld:
    """Draws events, and carries decisions out in any order, late, and not always."""

    rules: Rules
    state: State
    draw: np.random.Generator
    failures: float = 0.1
    now_s: float = 0.0
    pending: list[Decision] = field(default_factory=list)
    joined: int = 0
    lengths: dict[str, int] = field(default_factory=dict)

    def advance(self) -> tuple[State, Event, State, tuple[Decision, ...]]:
        """One event: the state before it, the event, the state after it, and the decisions."""
        before, event = self.state, self._draw()
        self.state, decisions = step(self.rules, self.state, event)
        self.pending += select(decisions, MoveSession)
        self.pending += select(decisions, AddNode)
        self.pending += select(decisions, MoveMessages)
        return before, event, self.state, decisions

    def settle(self, rounds: int = 60) -> None:
        """No more joins, leaves and failures: time passes and everything is carried out."""
        self.failures = 0.0
        for _ in range(rounds):
            while self.pending:
                self._step(self._carry_out())
            self.now_s += 20.0
            self._step(Tick(self.now_s, self._readings()))

    def _step(self, event: Event) -> None:
        self.state, decisions = step(self.rules, self.state, event)
        for kind in (MoveSession, AddNode, MoveMessages):
            self.pending += select(decisions, kind)

    def _readings(self) -> dict[str, Reading]:
        return {
            name: Reading(self.lengths.get(name, 0), waiting=0)
            for name, node in self.state.nodes.items()
            if node.status is Status.UP
        }

    def _draw(self) -> Event:
        draw = self.draw
        self.now_s += float(draw.exponential(1.0))
        if self.pending and draw.random() < 0.5:
            return self._carry_out()
        chance = draw.random()
        nodes = sorted(self.state.nodes)
        if chance < 0.4 or not self.state.sessions:
            self.joined += 1
            return Join(self.now_s, f"s{self.joined}", "producer" if draw.random() < 0.35 else "consumer")
        if chance < 0.75:
            return Leave(self.now_s, str(draw.choice(list(self.state.sessions))))
        if chance < 0.8 and nodes:
            return NodeLost(self.now_s, str(draw.choice(nodes)))
        if chance < 0.88 and nodes:
            return NodeBack(self.now_s, str(draw.choice(nodes)))
        for name in nodes:
            if draw.random() < 0.3:
                self.lengths[name] = int(draw.choice([0, 0, 50, 5_000, 30_000]))
        return Tick(self.now_s, self._readings())

    def _carry_out(self) -> Event:
        decision = self.pending.pop(int(self.draw.integers(len(self.pending))))
        fails = self.draw.random() < self.failures
        match decision:
            case MoveSession(session=id, target=target):
                return MoveFailed(self.now_s, id, target) if fails else SessionMoved(self.now_s, id, target)
            case AddNode(node=name):
                return AddFailed(self.now_s, name) if fails else NodeAdded(self.now_s, name)
            case MoveMessages(source=source, target=target, count=count):
                moved = count // 2 if fails else count
                self.lengths[source] = max(0, self.lengths.get(source, 0) - moved)
                self.lengths[target] = self.lengths.get(target, 0) + moved
                return MessagesMoved(self.now_s, source, target, moved)
            case _:
                raise AssertionError(decision)


@dataclass
class HostileWorld(RandomWorld):
    """Besides: old events come again, operators do anything, modes change, and so do readings; clocks go back."""

    old: list[Event] = field(default_factory=list)

    def _draw(self) -> Event:
        draw = self.draw
        node = str(draw.choice([*sorted(self.state.nodes), "?"]))
        proposal = str(draw.choice([*self.state.proposals, *(one.id for one in self.state.finished[-3:]), "?"]))
        chance = draw.random()
        if chance < 0.12 and self.old:
            return replace(self.old[int(draw.integers(len(self.old)))], now_s=self.now_s)
        if chance < 0.20:
            return Drain(self.now_s, node) if chance < 0.16 else Resume(self.now_s, node)
        if chance < 0.28:
            action = (Approve, Approve, Reject, Stop)[int(draw.integers(4))]
            return action(self.now_s, proposal)
        if chance < 0.29:
            return Grow(self.now_s) if draw.random() < 0.5 else Shrink(self.now_s, str(draw.choice([node, ""])))
        if chance < 0.31:
            mode = str(draw.choice(["on", "on", "on", "advise", "shadow"]))
            auto = frozenset(kind for kind in Kind if draw.random() < 0.7)
            self.rules = replace(self.rules, mode=mode, auto=auto)  # type: ignore[arg-type]
        if chance < 0.36:
            return Tick(self.now_s, {name: self._draw_reading() for name in self.state.nodes})
        if chance < 0.37:
            self.now_s -= float(draw.exponential(50.0))
        event = super()._draw()
        self.old = [*self.old, event][-30:]
        return event

    def _draw_reading(self) -> Reading:
        draw = self.draw
        capacity = int(draw.integers(1, 30)) if draw.random() < 0.5 else None
        length = int(draw.choice([0, 10, 30_000]))
        return Reading(length, int(draw.integers(0, 4)), capacity=capacity, is_saturated=bool(draw.random() < 0.2))
